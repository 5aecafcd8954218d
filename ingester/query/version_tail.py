"""Answers that name a manifest version: its files, or its buffered tail.

Runs on the event loop; the manifest is read in threads. What this daemon flushed after a version
belongs to that version's tail for ``query.tail_retain`` (tests/query/test_version_tail.py).
"""

from __future__ import annotations

import datetime as dt

import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import BadRequest, StaleVersion, StoreUnreachable
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
    """Reads versions of open tables. Event loop only."""

    def __init__(self, catalog: Catalog, tree: BufferTree, *, retain_s: float) -> None:
        self._catalog = catalog
        self._tree = tree
        self._retain_s = retain_s

    async def files(
        self, table: TableBuffer, version: int | None, table_version: int | None = None
    ) -> TableState:
        """Return the state of a manifest version; by default the newest of the named table version.

        Raises:
            BadRequest: the version is not kept.
            StoreUnreachable: the manifest cannot be read now.
            ManifestDamaged: a retry does not help.
        """
        manifest = self._catalog.manifest(table.key)
        # Longer numbers would not fit into an object's name.
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
            raise BadRequest(str(exc)) from exc
        except VersionNotKept as exc:
            raise BadRequest(
                f"version {version} of {table.namespace}/{table.name} is not kept: the oldest kept"
                f" is {exc.oldest}, the newest is {exc.newest}"
            ) from exc
        except StoreError as exc:
            raise StoreUnreachable(
                f"the manifest cannot be read: {exc}", retry_after_s=2.0
            ) from exc

    async def check_current(self, table: TableBuffer, ticket: Ticket) -> None:
        """Check that the versions a ticket names belong to the current table version.

        Only that one has buffers, and manifest version numbers mean something else in another
        one.

        Raises:
            BadRequest, StaleVersion: the table was switched.
        """
        if not names_versions(ticket):
            return
        if (ticket.table_version or 1) != table.state.table_version:
            await self._catalog.refresh(table, -1.0)
        check_table_version(table, ticket)

    async def buffered(self, table: TableBuffer, asked: int | None) -> Snapshot:
        """Take the rows that are buffered, or were flushed by this daemon after version ``asked``.

        Raises:
            BadRequest, StaleVersion, StoreUnreachable
        """
        if asked is not None and asked > table.state.version:
            await self._catalog.refresh(table, -1.0)
        elif table.definition.keyed and not self._owns(table):
            await self._catalog.refresh(table, -1.0)  # the owner may have changed
        version = table.state.version if asked is None else asked
        if version > table.state.version:
            raise BadRequest(
                f"version {version} of {table.namespace}/{table.name} does not exist,"
                f" the newest is {table.state.version}"
            )
        persisted, before = await self._persisted_since(table, version)
        # Atomic: no await since the version was checked.
        return snapshot_buffered(table, self._tree.upto, version, persisted, before)

    async def _persisted_since(
        self, table: TableBuffer, version: int
    ) -> tuple[list[Add], TableState | None]:
        """Return the files in the tail of ``version``; for a keyed table also that version."""
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
        # A later flush or rewrite replaces earlier files, so the current files count. Rows that the
        # version already had are equal in them.
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
        """Return whether this daemon reports a keyed table's changes in files.

        Only the newest row of a key may be reported. When several daemons are asked in turn,
        only the table's owner reports files; without an owner, the daemon that is asked does.
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
                table, f"version {since} is no longer kept; load version {newest}"
            ) from exc
        except StoreError as exc:
            raise StoreUnreachable(
                f"the manifest cannot be read: {exc}", retry_after_s=2.0
            ) from exc


def names_versions(ticket: Ticket) -> bool:
    """Return whether a ticket depends on the current table version."""
    return any(each is not None for each in (ticket.table_version, ticket.version, ticket.after))


def check_table_version(table: TableBuffer, ticket: Ticket) -> None:
    """Raise if a ticket names another table version than the current one. Thread-safe."""
    asked, now = ticket.table_version or 1, table.state.table_version
    if asked == now or not names_versions(ticket):
        return
    message = (
        f"table {table.namespace}/{table.name} is at table version {now}, but the ticket is for"
        f" table version {asked}, whose manifest versions and positions do not apply here: load"
        f" table version {now} and set table_version in the ticket"
    )
    if ticket.scope == "live":
        # Not `stale`: loading a newer manifest version would not help the follower.
        raise BadRequest(message, details={"table_version": now})
    raise _stale(table, message)


def _stale(table: TableBuffer, message: str) -> StaleVersion:
    newest = table.state.version
    details: dict[str, object] = {"manifest_version": newest, "version": newest}
    details["table_version"] = table.state.table_version
    return StaleVersion(message, retry_after_s=0.0, details=details)
