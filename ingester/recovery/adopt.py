"""Adoption: rows that a fenced or dead daemon acknowledged move from its log into the tables.

    log of the old daemon ──▶ parts by (ingester id, epoch, spec, partition), oldest first
        less what ``applied`` and the origins of the newest version have ──▶ files ──▶ commits

An operation is committed under the identity that wrote it, so ``applied`` shows this run and every
other what is committed already. A log on disk is locked and read, never changed. Before any commit
to a table, its manifest gets a newer epoch than the log's: that of the newest claimed process, or
one claimed here. So the log's writer can no longer commit, and a newer daemon is not disturbed.
``ingester.recovery.adopt_store`` adopts a log in the store.

In a table with a primary key the last write of a key wins. Within one log that is log order.
Against a newer epoch the order is unknown: where that has written, or may hold rows, nothing is
adopted, and the report says why (``tests/recovery``). Blocks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from ingester.flush.file_writer import FileWriter
from ingester.observability.status import LostOperations
from ingester.recovery.adopt_table import AdoptedTable, TableAdoption, patiently
from ingester.recovery.adoption_rules import ADOPTION
from ingester.recovery.orphan_log import OrphanLog, folder_log
from persist.manifest import Manifest, TableNotFound, WriterIdentity, claim_epoch, newest_epoch
from persist.manifest.paths import claim_path
from persist.parquet.copy_on_write import RewriteLimits
from persist.store import ObjectNotFound, ObjectStore
from persist.switching import load_current
from wal import DirectoryLock
from wal.disk import LOCK_NAME

AT_ONCE_BYTES = 64 << 20
"""The most bytes of rows held in memory before a commit."""


class CannotAdopt(Exception):
    """The folder or the store does not belong to the log; nothing more was changed."""


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an adoption. ``epochs`` are those of the log's writers, by ingester id."""

    directory: str
    """The data directory, or ``store:ID``."""
    store: str
    epochs: dict[str, list[int]]
    tables: list[AdoptedTable]
    lost: list[LostOperations] = []
    """What was acknowledged on a disk only, and is in no file, as far as the store knows. It is
    not lost if that disk is found."""

    @property
    def refused(self) -> list[AdoptedTable]:
        """Tables with rows that remain in the log only."""
        return [table for table in self.tables if table.refused is not None]


def adopt(
    directory: Path,
    store: ObjectStore,
    *,
    target_file_bytes: int = 128 << 20,
    at_once_bytes: int = AT_ONCE_BYTES,
) -> Adoption:
    """Commit what a log has and no file contains. Idempotent.

    Args:
        directory: a data directory, or its ``wal`` folder.

    Raises:
        DirectoryLocked: its daemon is running.
        LogDamaged, LogTooNew, DamagedRecord: the log cannot be read.
        CannotAdopt: no log, or a log of another store.
        StoreUnavailable, CommitUnclear: the store is unreachable; run it again.
    """
    inner = directory / "wal"
    folder = inner if inner.is_dir() else directory
    with ExitStack() as stack:
        if folder != directory or (folder.parent / LOCK_NAME).exists():
            stack.enter_context(DirectoryLock(folder.parent))
        log = folder_log(folder)
        if not log.segments:
            raise CannotAdopt(f"{directory} is no data directory: it holds no log segment")
        identities = Identities(store, log.writers())
        tables = adopt_log(log, store, identities, (target_file_bytes, at_once_bytes))
    return Adoption(
        directory=str(directory), store=store.url, epochs=identities.epochs(), tables=tables
    )


def adopt_log(
    log: OrphanLog, store: ObjectStore, identities: Identities, limits: tuple[int, int]
) -> list[AdoptedTable]:
    """Commit what a log has and no file contains.

    Args:
        limits: the bytes of a file, and those of rows in memory before a commit.

    Raises:
        CannotAdopt: as :func:`adopt`, and the other errors of reading and storing.
    """
    target_file_bytes, at_once_bytes = limits
    tables: dict[tuple[str, str], TableAdoption] = {}
    held = 0
    for operation in log.operations():
        key = (operation.logged.header.namespace, operation.logged.header.table)
        if key not in tables:
            identities.check()
            file_writer = partial(FileWriter, store, limits=RewriteLimits(target_file_bytes))
            try:
                # A pending switch is complete for the table's present version.
                current = patiently(partial(load_current, store, *key))
                manifest = Manifest(store, *key, current.table_version)
                tables[key] = TableAdoption(manifest, file_writer, identities)
            except TableNotFound as exc:
                raise CannotAdopt(
                    f"the log has rows of table {key[0]}/{key[1]}, which store {store.url} does not"
                    " have; is this the right store?"
                ) from exc
        held += tables[key].take(operation)
        if held >= at_once_bytes:
            for table in tables.values():
                table.flush()
            held = 0
    for table in tables.values():
        table.flush()
    whole = all(table.report.refused is None for table in tables.values())
    for table in tables.values():
        table.commit_checkpoints(whole=whole)
        table.close()
    return [tables[key].report for key in sorted(tables)]


class Identities:
    """The writers of a log, and the identities that succeed them.

    Args:
        successors: by ingester id, those that no process of another epoch follows. By default the
            newest claimed one, or a new one.
    """

    def __init__(
        self,
        store: ObjectStore,
        writers: list[WriterIdentity],
        successors: Mapping[str, WriterIdentity] | None = None,
    ) -> None:
        self._store = store
        self._writers = writers
        self._successors = dict(successors or {})
        self._ended = {each.ingester_id: each.epoch - 1 for each in self._successors.values()}
        self._checked = False

    def epochs(self) -> dict[str, list[int]]:
        """The epochs of the log's writers, by ingester id."""
        found: dict[str, list[int]] = {}
        for writer in self._writers:
            found.setdefault(writer.ingester_id, []).append(writer.epoch)
        return found

    def last_ended(self, ingester_id: str) -> int:
        """An epoch of the log, or a later one, up to which no process runs any more."""
        last = max(w.epoch for w in self._writers if w.ingester_id == ingester_id)
        return max(last, self._ended.get(ingester_id, 0))

    def check(self) -> None:
        """Check that this store knows the epochs of the log.

        Raises:
            CannotAdopt: it does not: another store, possibly with tables of the same names.
        """
        if self._checked:
            return
        for writer in self._writers:
            claimed = claimed_by(self._store, writer.ingester_id, writer.epoch)
            if claimed != writer:
                raise CannotAdopt(
                    f"the log was written by ingester {writer.ingester_id!r} in its epoch"
                    f" {writer.epoch} (incarnation {writer.incarnation}), which store"
                    f" {self._store.url} does not know; is this the right store?"
                )
        self._checked = True

    def successor(self, ingester_id: str) -> WriterIdentity:
        """An identity newer than all writers of the log: the newest claimed one, or a new one."""
        known = self._successors.get(ingester_id)
        if known is None:
            known = self._successors[ingester_id] = self._find_or_claim(ingester_id)
        return known

    def _find_or_claim(self, ingester_id: str) -> WriterIdentity:
        last = max(w.epoch for w in self._writers if w.ingester_id == ingester_id)
        newest = patiently(partial(newest_epoch, self._store, ingester_id))
        if newest <= last:
            claimed = claim_adoption(self._store, ingester_id, last + 1)
            if claimed.epoch == last + 1:
                return claimed
            # A daemon has started meanwhile: our claim would fence it.
            newest = claimed.epoch - 1
        found = claimed_by(self._store, ingester_id, newest)
        if found is None:
            raise CannotAdopt(f"{claim_path(ingester_id, newest)} in {self._store.url} is no claim")
        return found


def claim_adoption(store: ObjectStore, ingester_id: str, at_least: int) -> WriterIdentity:
    """Claim an epoch for an adoption, above all claimed ones and at least this one."""
    incarnation = f"{ADOPTION}{secrets.token_hex(8)}"
    body = {"incarnation": incarnation, "at": store.now().isoformat()}
    epoch = patiently(partial(claim_epoch, store, ingester_id, at_least, body))
    return WriterIdentity(ingester_id, incarnation, epoch)


def claimed_by(store: ObjectStore, ingester_id: str, epoch: int) -> WriterIdentity | None:
    """The identity that claimed the epoch, or None."""
    try:
        body = json.loads(patiently(partial(store.get, claim_path(ingester_id, epoch))))
        return WriterIdentity(ingester_id, str(body["incarnation"]), epoch)
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        return None
