"""Opens answers: from a ticket to a snapshot to a stream, and lets go of those nobody reads.

Law of this file: runs on the loop. A snapshot is taken in one step, after everything that needs the
store; a stream that makes no progress for ``query.client_timeout`` loses it.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.catalog import Catalog
from ingester.errors import InvalidRequest, StaleVersion, StoreAway, TooManyStreams
from ingester.query.align import projected
from ingester.query.files import RowGroups
from ingester.query.parts import PART_BYTES
from ingester.query.predicate import parse_filter
from ingester.query.reader import PartReader, Selection
from ingester.query.snapshot import Snapshot, snapshot_all, snapshot_buffered, snapshot_version
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from persist.manifest import (
    Add,
    CommittedVersion,
    ManifestDamaged,
    TableState,
    VersionNotKept,
    WriterIdentity,
)
from persist.store import StoreError

log = structlog.get_logger(__name__)

STALLED_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What the settings say about queries; seconds."""

    max_streams: int
    client_timeout_s: float
    tail_retain_s: float
    refresh_s: float


class Queries:
    """All open answers. Loop only, but for the closing of streams."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        writer: WriterIdentity,
        limits: QueryLimits,
        row_groups: RowGroups,
    ) -> None:
        self.row_groups = row_groups
        self.on_expired: Callable[[], None] = lambda: None
        self.on_opened: Callable[[AnswerStream], None] = lambda stream: None
        self._catalog = catalog
        self._tree = tree
        self._writer = writer
        self._limits = limits
        # Counted, not asked of the set: admission looks at it for every batch.
        self._open = 0
        # Weak: a stream is freed, and so closed, when the gRPC server drops it.
        self._streams: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        # Reentrant: a collection inside it may free a stream, which takes it again.
        self._lock = threading.RLock()

    def open_at_once(self, ticket: Ticket) -> AnswerStream | None:
        """The answer to a ticket for which nothing has to be asked of the store; None for others.

        Raises:
            InvalidRequest, TooManyStreams
        """
        self._check_room()
        table = self._catalog.known(ticket.namespace, ticket.table)
        if ticket.scope != "all" or table is None:
            return None
        if not self._catalog.is_fresh(table, self._limits.refresh_s):
            return None
        return self._answer(table, snapshot_all(table, self._tree.applied_seq), ticket)

    async def open(self, ticket: Ticket) -> AnswerStream:
        """The answer to a ticket.

        Raises:
            UnknownTable, InvalidRequest, StaleVersion, StoreAway, TooManyStreams
        """
        self._check_room()
        table = await self._catalog.open(ticket.namespace, ticket.table)
        snapshot = await self._snapshot(table, ticket)
        return self._answer(table, snapshot, ticket)

    def _answer(self, table: TableBuffer, snapshot: Snapshot, ticket: Ticket) -> AnswerStream:
        """Atomic: no await from the snapshot to here."""
        try:
            # Others may have come while the store was asked.
            self._check_room()
            return self._stream(table, snapshot, ticket)
        except BaseException:
            snapshot.close()
            raise

    async def refresh(self, table: TableBuffer) -> None:
        """See others' commits as a query would."""
        await self._catalog.refresh(table, self._limits.refresh_s)

    @property
    def open_streams(self) -> int:
        """Answers under way that still hold their snapshot."""
        return self._open

    @property
    def stalled_streams(self) -> int:
        """Answers whose client has not asked for more for a while."""
        before = time.monotonic() - STALLED_AFTER_S
        return sum(
            1
            for stream in self._alive()
            if not stream.expired and stream.sending_since and stream.sending_since < before
        )

    def answer_bytes(self) -> int:
        """What answers on the way may hold: one part each."""
        return self.open_streams * PART_BYTES

    def _alive(self) -> list[AnswerStream]:
        """Strong references: let go of them outside the lock, where a stream may be freed."""
        with self._lock:
            return list(self._streams)

    def _expire(self, before: float) -> int:
        expired = sum(stream.expire(before) for stream in self._alive())
        with self._lock:
            self._open -= expired
        return expired

    async def run(self) -> None:
        """Expire answers that nobody reads, and what was decoded for them, until cancelled."""
        period_s = min(1.0, max(0.01, self._limits.client_timeout_s / 4))
        while True:
            await trio.sleep(period_s)
            self.row_groups.forget_idle()
            expired = self._expire(time.monotonic() - self._limits.client_timeout_s)
            for _ in range(expired):
                self.on_expired()
            if expired:
                log.warning(
                    "answers abandoned by their clients were let go",
                    streams=expired,
                    timeout_s=self._limits.client_timeout_s,
                    runbook="slow-client",
                )

    async def wait_idle(self) -> None:
        """Return when no answer is under way."""
        while self.open_streams:
            await trio.sleep(0.02)

    def close_all(self) -> None:
        """Let go of every snapshot: the process ends."""
        self._expire(float("inf"))

    def _check_room(self) -> None:
        if self.open_streams >= self._limits.max_streams:
            raise TooManyStreams(
                f"{self._limits.max_streams} answers are under way, as many as query.max_streams",
                retry_after_s=1.0,
            )

    async def _snapshot(self, table: TableBuffer, ticket: Ticket) -> Snapshot:
        if ticket.scope == "version":
            assert ticket.version is not None
            return snapshot_version(
                await self.load_version(table, ticket.version), self._tree.applied_seq
            )
        await self.refresh(table)
        if ticket.scope == "all":
            return snapshot_all(table, self._tree.applied_seq)
        return await self._buffered(table, ticket.version)

    async def _buffered(self, table: TableBuffer, asked: int | None) -> Snapshot:
        if asked is not None and asked > table.state.version:
            await self._catalog.refresh(table, -1.0)
        version = table.state.version if asked is None else asked
        if version > table.state.version:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} does not exist,"
                f" the newest is {table.state.version}"
            )
        persisted: list[Add] = []
        seen = version
        while seen < (head := table.state.version):
            changes, now = await self._changes(table, seen, head)
            if seen == version:
                self._check_age(table, version, changes[0], now)
            persisted += [
                action
                for change in changes
                for action in change.actions
                if isinstance(action, Add)
                and action.kind == "persist"
                and action.writer == self._writer.ingester_id
            ]
            seen = head
        if table.definition.keyed:
            # A later persist rewrites the files of an earlier one: only those of the head count.
            persisted = [add for add in persisted if add.path in table.state.files]
        # Atomic: no await since the last look at the version.
        return snapshot_buffered(table, self._tree.applied_seq, version, persisted)

    def _check_age(
        self, table: TableBuffer, version: int, next_: CommittedVersion, now: dt.datetime
    ) -> None:
        age_s = (now - dt.datetime.fromisoformat(next_.at)).total_seconds()
        if age_s > self._limits.tail_retain_s:
            raise StaleVersion(
                f"version {version} of {table.namespace}/{table.name} ended {age_s:.0f} s ago,"
                f" tails are kept for {self._limits.tail_retain_s:g} s (query.tail_retain);"
                f" load version {table.state.version} and ask again",
                retry_after_s=0.0,
                details={"manifest_version": table.state.version, "version": table.state.version},
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
            raise StaleVersion(
                f"version {since} is not kept any more; load version {table.state.version}",
                retry_after_s=0.0,
                details={"manifest_version": table.state.version, "version": table.state.version},
            ) from exc
        except (StoreError, ManifestDamaged) as exc:
            raise StoreAway(f"the manifest cannot be read: {exc}", retry_after_s=2.0) from exc

    async def load_version(self, table: TableBuffer, version: int) -> TableState:
        """The files of one manifest version."""
        manifest = self._catalog.manifest(table.key)
        try:
            return await trio.to_thread.run_sync(partial(manifest.load, version))
        except VersionNotKept as exc:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} is not kept: the oldest kept"
                f" is {exc.oldest}, the newest is {exc.newest}"
            ) from exc
        except (StoreError, ManifestDamaged) as exc:
            raise StoreAway(f"the manifest cannot be read: {exc}", retry_after_s=2.0) from exc

    def _stream(self, table: TableBuffer, snapshot: Snapshot, ticket: Ticket) -> AnswerStream:
        schema = snapshot.definition.schema
        marks = ticket.scope == "buffered" and snapshot.definition.keyed
        selection = Selection(
            schema=projected(schema, ticket.columns, marks),
            predicate=parse_filter(ticket.filter, schema),
            limit=ticket.limit,
            marks_operations=marks,
        )
        folder = f"{table.namespace}/{table.name}/v1"
        reader = PartReader(snapshot, selection, self.row_groups, folder)
        stream = AnswerStream(table.key, reader, on_close=self._forget)
        self.on_opened(stream)
        with self._lock:
            self._streams.add(stream)
            self._open += 1
        return stream

    def _forget(self, stream: AnswerStream) -> None:
        with self._lock:
            self._streams.discard(stream)
            self._open -= not stream.expired
