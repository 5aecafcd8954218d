"""``manifest log | show | versions | verify | gc``: tables in a store, without a daemon.

Only ``gc`` writes. With ``--json`` each command prints a list with one object per table, even for a
single table.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer
from msgspec.structs import asdict

from ingester.config.settings import Settings
from ingester.config.sources import load
from ingester.recovery.log_gc import collect_logs
from persist.manifest import (
    Add,
    CleanUp,
    CommitUnclear,
    Deleted,
    Manifest,
    ManifestError,
    Remove,
    Retention,
    TableNotFound,
    TableState,
    TableVersion,
    Verification,
    VersionStep,
    check_kept,
    clean_up,
    kept_versions,
    list_tables,
    list_versions,
    walk,
)
from persist.manifest import verify as verify_manifest
from persist.manifest.actions import decoded_size
from persist.parquet.reading import DataFile, read_footer
from persist.partitioning import PartitionSpec, folder_of
from persist.publish.format import FORMATS
from persist.publish.publisher import Publisher
from persist.store import ObjectStore, StoreError, StoreUnavailable, open_store
from persist.switching import VersionRetention, VersionsCleaned, clean_up_versions
from persist.table import TableDefinition

from .exits import FAILED, REFUSED, USAGE, CommandFailed
from .printing import print_json, print_line, print_table, say, shown, size

T = TypeVar("T")


@dataclass(frozen=True)
class ChosenTables:
    """The tables of a command, and its settings."""

    store: ObjectStore
    settings: Settings
    manifests: tuple[Manifest, ...]
    whole_store: bool = False

    def each(self, look: Callable[[Manifest], T]) -> list[T]:
        """The result of ``look`` for each table, in order. Raises CommandFailed."""
        with _told():
            return [look(manifest) for manifest in self.manifests]


@contextmanager
def _told() -> Iterator[None]:
    """Convert errors of a store or manifest to CommandFailed."""
    try:
        yield
    except (StoreUnavailable, CommitUnclear) as exc:
        raise CommandFailed(f"{exc}; try again", REFUSED) from exc
    except (StoreError, ManifestError) as exc:
        raise CommandFailed(str(exc), FAILED) from exc


def chosen(
    url: str,
    namespace: str | None,
    table: str | None,
    config: Path | None,
    flags: Mapping[str, object] | None = None,
    table_version: int | None = None,
) -> ChosenTables:
    """The tables in the store at ``url``; ``flags`` are settings.

    Args:
        table_version: Generation of the named table; by default the current one of each table.

    Raises:
        ConfigError, CommandFailed: No such store or table, or an invalid name.
    """
    settings = load({"store": url, **(flags or {})}, file=config).settings
    with _told():
        try:
            store = open_store(settings.store_url, **settings.store_options)
            if namespace is not None and table is not None:
                names = [(namespace, table)]
            else:
                names = [one for one in list_tables(store) if namespace in (None, one[0])]
            if table_version is not None:
                _check_version(store, (namespace, table), table_version)
            manifests = tuple(Manifest(store, *name, table_version) for name in names)
        except ValueError as exc:
            raise CommandFailed(str(exc), USAGE) from exc
    if not manifests:
        where = f"{store.url}/{namespace}" if namespace is not None else store.url
        raise CommandFailed(f"no table found in {where}")
    return ChosenTables(store, settings, manifests, whole_store=namespace is None)


def _check_version(
    store: ObjectStore, name: tuple[str | None, str | None], table_version: int
) -> None:
    namespace, table = name
    if namespace is None or table is None:
        raise CommandFailed("--table-version needs NAMESPACE and TABLE", USAGE)
    check_kept(store, namespace, table, table_version)


def print_versions(tables: ChosenTables, as_json: bool) -> None:
    """Print the generations of each table, and which one is current."""

    def versions(manifest: Manifest) -> dict[str, Any]:
        known = list_versions(manifest.store, manifest.namespace, manifest.table)
        if not any(each.committed or each.claim for each in known):
            raise TableNotFound(manifest.namespace, manifest.table)
        facts = [asdict(each) | {"state": _state_of(each)} for each in known]
        return _named(manifest) | {"versions": facts}

    found = tables.each(versions)
    if as_json:
        print_json(found)
        return
    headings = ["version", "current", "state", "push", "claimed", "switched to"]
    for one in found:
        rows = [
            (
                str(v["version"]),
                "yes" if v["current"] else "",
                v["state"],
                v["claim"].push_id if v["claim"] else "",
                v["claim"].at if v["claim"] else "",
                v["switched_at"] or "",
            )
            for v in one["versions"]
        ]
        print_table(headings, rows, _title(one))


def _state_of(version: TableVersion) -> str:
    if version.gone is not None and not version.current:
        return version.gone.why if version.committed else "deleted"
    return "kept" if version.committed else "claimed"


def print_log(tables: ChosenTables, limit: int | None, as_json: bool) -> None:
    """Print the retained versions of each table, newest first."""

    def versions(manifest: Manifest) -> dict[str, Any]:
        oldest, newest = kept_versions(manifest)
        if limit is not None:
            oldest = max(oldest, newest - limit + 1)
        steps = [version_facts(step) for step in walk(manifest, oldest, newest)]
        return _named(manifest) | {"versions": steps[::-1]}

    found = tables.each(versions)
    if as_json:
        print_json(found)
        return
    headings = ["version", "at", "writer", "did", "rows added", "removed", "rows", "files", "uid"]
    for one in found:
        rows = [
            (
                str(v["version"]),
                v["at"],
                f"{v['writer'].ingester_id} (epoch {v['writer'].epoch})",
                ", ".join(f"{count} {name}" for name, count in v["actions"].items()),
                v["rows_added"],
                v["rows_removed"],
                v["rows"],
                v["files"],
                v["uid"],
            )
            for v in one["versions"]
        ]
        print_table(headings, rows, _title(one))


def print_state(tables: ChosenTables, version: int | None, as_json: bool) -> None:
    """Print the contents of one version of each table."""
    damaged: list[str] = []

    def facts_of(manifest: Manifest) -> dict[str, Any]:
        state = manifest.load(version)
        damaged.extend(state.damaged_snapshots)
        return _named(manifest) | state_facts(state)

    found = tables.each(facts_of)
    for path in damaged:
        say(
            f"snapshot {path} is damaged and was not used: the version was read from changelogs;"
            " `ingester manifest verify` checks the rest, and a daemon writes a new snapshot"
        )
    if as_json:
        print_json(found)
        return
    for one in found:
        facts = [(key, one[key]) for key in _SHORT_FACTS]
        print_table(["", ""], [(key, _cell(key, value)) for key, value in facts], _title(one))
        for key in ("columns", "partitions", "applied", "checkpoints", "shared", "writers"):
            if one[key]:
                headings = list(one[key][0])
                rows = [[_cell(name, row[name]) for name in headings] for row in one[key]]
                print_table(headings, rows, f"\n{key}")


_SHORT_FACTS = (
    "version", "uid", "files", "rows", "bytes", "partition_by", "primary_key", "sort_by",
    "timestamp_unit", "horizon",
)  # fmt: skip


def print_verification(tables: ChosenTables, with_data: bool, as_json: bool) -> None:
    """Print the findings; exit 1 if something is damaged."""

    def count_rows(path: str, add: Add) -> int:
        with tables.store.open(path) as file:
            return int(read_footer(file, DataFile(path, add.bytes, add.footer_crc32c)).num_rows)

    found = tables.each(lambda each: verify_manifest(each, count_rows if with_data else None))
    if as_json:
        print_json(found)
    else:
        for one in found:
            _print_one_verification(one)
    if any(one.damaged for one in found):
        raise typer.Exit(FAILED)


def _print_one_verification(one: Verification) -> None:
    verdict = "damaged" if one.damaged else "intact"
    print_line(
        f"{one.namespace}/{one.table}: {verdict}; versions {one.oldest} to {one.newest},"
        f" {one.data_files:,} data files"
    )
    strays = _kinds(one, "stray_")
    if strays:
        print_line(f"  not needed by any retained version: {strays}")
    if one.findings:
        rows = [(f.severity, str(f.version), f.path, f.problem) for f in one.findings]
        print_table(["severity", "version", "file", "problem"], rows)


def run_clean_up(tables: ChosenTables, dry_run: bool, as_json: bool) -> None:
    """Clean up each table, and print what was deleted."""
    manifest_settings = tables.settings.manifest
    retain_s, grace_s = manifest_settings.retain, manifest_settings.orphan_grace
    retention = Retention(retain_s=retain_s, orphan_grace_s=grace_s)
    versions = VersionRetention(tables.settings.versions.keep, grace_s, retain_s)

    def cleaned(manifest: Manifest) -> dict[str, Any]:
        done = clean_up(manifest, retention, dry_run=dry_run)
        name = (manifest.namespace, manifest.table)
        old = clean_up_versions(manifest.store, *name, versions, dry_run=dry_run)
        if not dry_run:
            Publisher(manifest.store, *name).clean_up(
                FORMATS, retain_s=retention.retain_s, grace_s=retention.orphan_grace_s
            )
        if not as_json:
            _print_one_clean_up(done)
            _print_old_versions(old)
        table_versions = {"marked": old.marked, "deleted": old.deleted, "objects": old.objects}
        return asdict(done) | {"table_versions": table_versions}

    done = tables.each(cleaned)
    if as_json:
        print_json(done)
    if tables.whole_store:
        with _told():
            logs = collect_logs(tables.store, grace_s, dry_run=dry_run)
        for one in logs:
            what = "would delete" if dry_run else "deleted"
            line = f"log of {one.ingester_id}: {what} {one.objects:,} log objects"
            (say if as_json else print_line)(line + (f"; {one.problem}" if one.problem else ""))


def _print_one_clean_up(one: CleanUp) -> None:
    what = "would delete" if one.dry_run else "deleted"
    print_line(
        f"{one.namespace}/{one.table}: {what} {_kinds(one) or 'nothing'};"
        f" versions {one.oldest} to {one.newest} are retained"
    )
    if one.snapshot_version is not None:
        wrote = "would write" if one.dry_run else "wrote"
        print_line(f"  {wrote} a snapshot of version {one.snapshot_version}")


def _print_old_versions(one: VersionsCleaned) -> None:
    would = "would be " if one.dry_run else ""
    if one.marked:
        print_line(f"  generations {would}marked for deletion: {', '.join(map(str, one.marked))}")
    if one.deleted:
        print_line(
            f"  generations {would}deleted: {', '.join(map(str, one.deleted))},"
            f" {one.objects.files:,} objects ({size(one.objects.bytes)})"
        )


def _kinds(one: object, prefix: str = "") -> str:
    kinds = {each: each for each in ("commits", "changelogs", "snapshots")} | {"data": "data files"}
    deleted: dict[str, Deleted] = {kinds[name]: getattr(one, prefix + name) for name in kinds}
    parts = (f"{d.files:,} {kind} ({size(d.bytes)})" for kind, d in deleted.items() if d.files)
    return ", ".join(parts)


def _named(manifest: Manifest) -> dict[str, Any]:
    return {"namespace": manifest.namespace, "table": manifest.table}


def _title(one: Mapping[str, Any]) -> str:
    return f"{one['namespace']}/{one['table']}"


def _cell(name: str, value: object) -> object:
    if name == "bytes":
        return size(value)
    if name in ("version", "epoch", "sequence", "spec_id") and value is not None:
        return str(value)
    return shown(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def version_facts(step: VersionStep) -> dict[str, Any]:
    """One version in the log: its writer, its actions, and the table after it."""
    actions = step.changelog.actions
    added = sum(action.rows for action in actions if isinstance(action, Add))
    return {
        "version": step.commit.version,
        "uid": step.commit.uid,
        "parent": step.commit.parent,
        "at": step.commit.at,
        "writer": step.commit.writer,
        "actions": Counter(str(action.__struct_config__.tag) for action in actions),
        "rows_added": added,
        "rows_removed": step.rows_removed,
        "files_removed": sum(isinstance(action, Remove) for action in actions),
        "rows": step.state.rows,
        "files": step.state.file_count,
        "bytes": step.state.bytes,
    }


def state_facts(state: TableState) -> dict[str, Any]:
    """The contents of a version: columns, partitions, checkpoints, writers and totals."""
    definition = TableDefinition.of_state(state)
    specs = {spec_id: PartitionSpec.parse(spec.fields) for spec_id, spec in state.specs.items()}
    return {
        "version": state.version,
        "uid": state.uid,
        "files": state.file_count,
        "rows": state.rows,
        "bytes": state.bytes,
        "schema_id": definition.schema_id,
        "columns": [{"name": f.name, "type": str(f.type)} for f in definition.schema],
        "partition_by": list(definition.spec.texts()),
        "primary_key": list(definition.primary_key),
        "sort_by": list(definition.sort_by),
        "timestamp_unit": definition.timestamp_unit,
        "horizon": state.horizon,
        "partitions": sorted(
            (
                {
                    "partition": folder_of(specs[spec_id], values),
                    "spec_id": spec_id,
                    "files": len(adds),
                    "rows": sum(add.rows for add in adds),
                    "bytes": sum(add.bytes for add in adds),
                }
                for (spec_id, values), adds in state.partitions.items()
            ),
            key=lambda one: (one["spec_id"], one["partition"]),
        ),
        "applied": [
            {
                "ingester_id": ingester_id,
                "epoch": epoch,
                "partition": folder_of(specs[spec_id], values)
                if spec_id in specs
                else f"{list(values)}, before the table was recreated by a copy",
                "sequence": seq,
            }
            for (ingester_id, epoch, spec_id, values), seq in state.applied.items()
        ],
        "checkpoints": [
            {
                "partition": one.partition,
                "bytes": decoded_size(one.state),
                "shared": one.shared,
                "at": one.at,
                "origin": one.origin,
                "sequence": one.sequence,
            }
            for _, one in sorted(state.checkpoints.items())
            if one.state is not None
        ],
        "shared": [
            {"shared": one.id, "bytes": decoded_size(one.state)}
            for _, one in sorted(state.shared_states.items())
        ],
        "epochs_complete": sorted(state.epochs_complete),
        "writers": [msgspec.structs.asdict(writer) for writer in state.writers.values()],
    }
