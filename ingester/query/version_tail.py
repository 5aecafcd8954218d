"""Answers that name a manifest version: its files, or what came after it.

Law of this file: runs on the loop; the manifest is read in threads. What a daemon has persisted
after a version is part of that version's tail as long as ``query.tail_retain`` says.
"""

from __future__ import annotations

import datetime as dt
from functools import partial

import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import InvalidRequest, StaleVersion, StoreAway
from ingester.query.snapshot import Snapshot, snapshot_buffered
from ingester.tables.catalog import Catalog
from persist.manifest import (
    Add,
    CommittedVersion,
    PartitionKey,
    TableState,
    VersionNotKept,
    live_owner,
)
from persist.store import StoreError

_MAX_VERSION = 10**18


class VersionTail:
    """Reads versions of open tables. Loop only."""

    def __init__(self, catalog: Catalog, tree: BufferTree, *, retain_s: float) -> None:
        self._catalog = catalog
        self._tree = tree
        self._retain_s = retain_s

    async def files(self, table: TableBuffer, version: int) -> TableState:
        """The files of one manifest version.

        Raises:
            InvalidRequest, StoreAway
            ManifestDamaged: it cannot be read at any later time either.
        """
        manifest = self._catalog.manifest(table.key)
        try:
            # Some numbers are too long for the name of an object.
            return await trio.to_thread.run_sync(partial(manifest.load, min(version, _MAX_VERSION)))
        except VersionNotKept as exc:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} is not kept: the oldest kept"
                f" is {exc.oldest}, the newest is {exc.newest}"
            ) from exc
        except StoreError as exc:
            raise StoreAway(f"the manifest cannot be read: {exc}", retry_after_s=2.0) from exc

    async def buffered(self, table: TableBuffer, asked: int | None) -> Snapshot:
        """The rows in buffers, or flushed by this daemon after version ``asked``.

        Raises:
            InvalidRequest, StaleVersion, StoreAway
        """
        if asked is not None and asked > table.state.version:
            await self._catalog.refresh(table, -1.0)
        elif table.definition.keyed and not self._owns(table):
            await self._catalog.refresh(table, -1.0)  # the owner may be another one by now
        version = table.state.version if asked is None else asked
        if version > table.state.version:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} does not exist,"
                f" the newest is {table.state.version}"
            )
        persisted, before = await self._persisted_since(table, version)
        # Atomic: no await since the last look at the version.
        return snapshot_buffered(table, lambda: self._tree.applied_seq, version, persisted, before)

    async def _persisted_since(
        self, table: TableBuffer, version: int
    ) -> tuple[list[Add], TableState | None]:
        """Return the files that belong to the tail of ``version``, and a keyed table's version."""
        before = None
        persisted: list[Add] = []
        changed: set[PartitionKey] = set()
        seen = version
        while seen < (head := table.state.version):
            changes, now = await self._changes(table, seen, head)
            if seen == version:
                self._check_age(table, version, changes[0], now)
            if before is None and table.definition.keyed and self._answers_for(table):
                before = await self.files(table, version)
            added = [
                action
                for change in changes
                for action in change.actions
                if isinstance(action, Add) and action.kind != "rewrite"
            ]
            changed.update(add.partition for add in added)
            persisted += [add for add in added if self._persisted_here(add)]
            seen = head
        if not table.definition.keyed:
            return persisted, None
        if before is None or not self._answers_for(table):
            return [], None
        # A later flush, or a rewrite, replaces the files of an earlier one: what counts is what
        # stands there now. Rows that the version had, too, are the same in it.
        now_there = table.state.partitions.items()
        return [
            add
            for key, files in now_there
            if key in changed
            for add in files
            if add.path not in before.files
        ], before

    def _persisted_here(self, add: Add) -> bool:
        return add.kind == "persist" and add.writer == self._tree.ingester_id

    def _owns(self, table: TableBuffer) -> bool:
        owner = live_owner(table.state)
        return owner is not None and owner.ingester_id == self._tree.ingester_id

    def _answers_for(self, table: TableBuffer) -> bool:
        """Whether a keyed table's changes in files are this daemon's to tell.

        Of a key only the newest row may be told, so where daemons are asked one after another, one
        alone tells of files: who takes the table's writes, and if nobody does, whoever is asked.
        """
        return self._owns(table) or live_owner(table.state) is None

    def _check_age(
        self, table: TableBuffer, version: int, next_: CommittedVersion, now: dt.datetime
    ) -> None:
        age_s = (now - dt.datetime.fromisoformat(next_.at)).total_seconds()
        if age_s > self._retain_s:
            raise _stale(
                table,
                f"version {version} of {table.namespace}/{table.name} ended {age_s:.0f} s ago,"
                f" tails are kept for {self._retain_s:g} s (query.tail_retain);"
                f" load version {table.state.version} and ask again",
            )

    async def _changes(
        self, table: TableBuffer, since: int, until: int
    ) -> tuple[list[CommittedVersion], dt.datetime]:
        manifest = self._catalog.manifest(table.key)

        def read() -> tuple[list[CommittedVersion], dt.datetime]:
            return list(manifest.changes(since, until)), self._catalog.store.now()

        try:
            return await trio.to_thread.run_sync(read)
        except VersionNotKept as exc:
            newest = table.state.version
            raise _stale(
                table, f"version {since} is not kept any more; load version {newest}"
            ) from exc
        except StoreError as exc:
            raise StoreAway(f"the manifest cannot be read: {exc}", retry_after_s=2.0) from exc


def _stale(table: TableBuffer, message: str) -> StaleVersion:
    newest = table.state.version
    details: dict[str, object] = {"manifest_version": newest, "version": newest}
    return StaleVersion(message, retry_after_s=0.0, details=details)
