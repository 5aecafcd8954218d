"""``wal … --from-store ID``: the log objects of an ingester whose machine or disk is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ingester.config.settings import Settings
from ingester.config.sources import load
from ingester.recovery.adopt import Adoption
from ingester.recovery.adopt_store import adopt_from_store
from ingester.store_log.inspection import inspect_objects, repair_objects, verify_objects
from persist.manifest.paths import claims_folder, is_name
from persist.store import ObjectStore, StoreError, StoreUnavailable, open_store
from wal import LogError

from .exits import REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, print_table, size
from .wal_tools import print_findings, run_adoption

T = TypeVar("T")


class StoreLogTools:
    """The log objects of one ingester."""

    def __init__(self, ingester_id: str, flags: Mapping[str, object], file: Path | None) -> None:
        if not is_name(ingester_id):
            raise CommandFailed(f"--from-store {ingester_id!r} is no ingester id", USAGE)
        self._ingester_id = ingester_id
        self._flags = flags
        self._file = file

    def inspect(self, as_json: bool) -> None:
        """Print the facts of each object."""
        objects = self._ask(lambda store: inspect_objects(store, self._ingester_id))
        if as_json:
            print_json(objects)
            return
        headings = ["epoch", "object", "state", "first", "last", "operations", "size", "problem"]
        rows = [
            (
                str(one.epoch),
                str(one.number),
                one.state,
                str(one.first_seq),
                str(one.last_seq),
                one.operations,
                size(one.bytes),
                one.problem or "",
            )
            for one in objects
        ]
        print_table(headings, rows)

    def verify(self, as_json: bool) -> None:
        """Print the findings; exit 1 if a start or an adoption would refuse the log."""
        findings = self._ask(lambda store: verify_objects(store, self._ingester_id))
        print_findings(findings, as_json)

    def repair(self, as_json: bool) -> None:
        """Replace damaged objects by their good records."""
        repaired = self._ask(lambda store: repair_objects(store, self._ingester_id))
        if as_json:
            print_json(repaired)
        elif not repaired:
            print_line("nothing to repair: no log object is damaged")
        else:
            headings = ["object", "problem", "operations saved", "moved to"]
            rows = [
                (one.path, one.problem, one.operations_saved, one.moved_to or "")
                for one in repaired
            ]
            print_table(headings, rows)

    def adopt(self, as_json: bool) -> None:
        """End the log, commit its rows, and delete its objects."""
        settings = self._settings()
        target = settings.persist.target_file_bytes

        def adopt(store: ObjectStore) -> Adoption:
            self._check_known(store)
            return adopt_from_store(self._ingester_id, store, target_file_bytes=target)

        run_adoption(settings, adopt, as_json)

    def _check_known(self, store: ObjectStore) -> None:
        """Refuse an id that has never run on this store: a typing error, or another store."""
        if next(iter(store.list(claims_folder(self._ingester_id))), None) is None:
            raise CommandFailed(
                f"store {store.url} knows no ingester {self._ingester_id!r}: check the id, and give"
                " the store with --store URL or --config FILE"
            )

    def _settings(self) -> Settings:
        return load(dict(self._flags), file=self._file).settings

    def _ask(self, call: Callable[[ObjectStore], T]) -> T:
        settings = self._settings()
        try:
            store = open_store(settings.store_url, **settings.store_options)
            self._check_known(store)
            return call(store)
        except StoreUnavailable as exc:
            raise CommandFailed(f"the object store does not answer: {exc}", REFUSED) from exc
        except (LogError, StoreError, ValueError) as exc:
            raise CommandFailed(str(exc)) from exc
