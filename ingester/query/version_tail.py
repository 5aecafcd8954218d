"""Answers that name a manifest version: its files, or what came after it.

Law of this file: runs on the loop; the manifest is read in threads. What a daemon has persisted
after a version is part of that version's tail as long as ``query.tail_retain`` says.
"""

from __future__ import annotations

import datetime as dt

import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import InvalidRequest, StaleVersion, StoreAway
from ingester.query.snapshot import Snapshot, snapshot_buffered
from ingester.query.ticket import Ticket
from ingester.tables.catalog import Catalog
from persist.manifest import (
    Add,
    CommittedVersion,
    Manifest,
    PartitionKey,
    TableState,
    TableVersionNotKept,
    VersionNotKept,
    check_kept,
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

    async def files(
        self, table: TableBuffer, version: int | None, table_version: int | None = None
    ) -> TableState:
        """The files of one manifest version; of the newest, of a table version that is named.

        Raises:
            InvalidRequest, StoreAway
            ManifestDamaged: it cannot be read at any later time either.
        """
        manifest = self._catalog.manifest(table.key)
        # Some numbers are too long for the name of an object.
        number = None if version is None else min(version, _MAX_VERSION)

        def load() -> TableState:
            if table_version in (None, manifest.table_version):
                return manifest.load(number)
            wanted = min(table_version or 1, _MAX_VERSION)
            check_kept(manifest.store, *table.key, wanted)
            return Manifest(manifest.store, *table.key, wanted).load(number)

        try:
            return await trio.to_thread.run_sync(load)
        except TableVersionNotKept as exc:
            raise InvalidRequest(str(exc)) from exc
        except VersionNotKept as exc:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} is not kept: the oldest kept"
                f" is {exc.oldest}, the newest is {exc.newest}"
            ) from exc
        except StoreError as exc:
            raise StoreAway(f"the manifest cannot be read: {exc}", retry_after_s=2.0) from exc

    async def check_current(self, table: TableBuffer, ticket: Ticket) -> None:
        """See to it that what a ticket says of versions is meant of the one that counts.

        Only that one has buffers, and manifest versions of another would say something else.

        Raises:
            InvalidRequest, StaleVersion: the table was switched.
        """
        if not names_versions(ticket):
            return
        if (ticket.table_version or 1) != table.state.table_version:
            await self._catalog.refresh(table, -1.0)
        check_table_version(table, ticket)

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


def names_versions(ticket: Ticket) -> bool:
    """Whether a ticket means something in one version of the table as a whole alone."""
    return any(each is not None for each in (ticket.table_version, ticket.version, ticket.after))


def check_table_version(table: TableBuffer, ticket: Ticket) -> None:
    """Raise where a ticket means another table version than the table answers from. Any thread."""
    asked, now = ticket.table_version or 1, table.state.table_version
    if asked == now or not names_versions(ticket):
        return
    message = (
        f"table {table.namespace}/{table.name} is at table version {now}, and the ticket is about"
        f" version {asked}, in which manifest versions and positions mean something else: load"
        f" table version {now}, and name it as table_version in the ticket"
    )
    if ticket.scope == "live":
        # Not stale: a newer manifest version of the one that it follows does not help it.
        raise InvalidRequest(message, details={"table_version": now})
    raise _stale(table, message)


def _stale(table: TableBuffer, message: str) -> StaleVersion:
    newest = table.state.version
    details: dict[str, object] = {"manifest_version": newest, "version": newest}
    details["table_version"] = table.state.table_version
    return StaleVersion(message, retry_after_s=0.0, details=details)
