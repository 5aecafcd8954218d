"""Opens answers: from a ticket to a snapshot to a stream, and lets go of those nobody reads.

Law of this file: what needs the store runs on the loop, and the snapshot is taken in one step after
it. An answer that needs nothing of the store is opened by the thread that asks: the way to the loop
and back would take longer than the rest. A stream that makes no progress for
``query.client_timeout`` loses its snapshot.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import Stopping, TooManyStreams
from ingester.observability.status import StreamStatus
from ingester.query.parts import PART_BYTES
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import Snapshot, snapshot_all, snapshot_version
from ingester.query.stream import AnswerStream, Reader
from ingester.query.ticket import Ticket, predicate_of
from ingester.query.version_tail import VersionTail
from ingester.schema.align import projected
from ingester.tables.catalog import Catalog
from persist.table import TableDefinition, TableKey

log = structlog.get_logger(__name__)

STALLED_AFTER_S = 5.0

MakeReader = Callable[[Selection, RowGroupCache], Reader]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The settings of queries; durations are seconds."""

    max_streams: int
    client_timeout_s: float
    tail_retain_s: float
    refresh_s: float


@dataclass(frozen=True, slots=True)
class QueryHooks:
    """Functions of the daemon that queries call."""

    settled: Callable[[], bool] = lambda: True
    """Says whether all that was acknowledged until now is applied, and may wait a moment for it.
    Called in threads of clients."""
    on_opened: Callable[[TableKey], None] = lambda table: None
    """Is told the table of each query that begins, in any thread."""
    on_expired: Callable[[], None] = lambda: None
    """Is told of each answer that was let go because its client made no progress."""


class Queries:
    """All open answers. Loop only, but for `open_at_once` and the closing of streams."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        limits: QueryLimits,
        row_groups: RowGroupCache,
        hooks: QueryHooks = QueryHooks(),
    ) -> None:
        self.row_groups = row_groups
        self.stopping = False
        """Whether no new answers are opened, and those under way are waited for."""
        self._catalog = catalog
        self._tree = tree
        self._version_tail = VersionTail(catalog, tree, retain_s=limits.tail_retain_s)
        self._limits = limits
        self._hooks = hooks
        # Counted, not asked of the set: admission looks at it for every batch.
        self._open = 0
        self._on_idle: Callable[[], None] | None = None
        # Weak: a stream is freed, and so closed, when the gRPC server drops it.
        self._streams: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        # Reentrant: a collection inside it may free a stream, which takes it again.
        self._lock = threading.RLock()

    def open_at_once(self, ticket: Ticket) -> AnswerStream | None:
        """Open the answer to a ticket that needs nothing of the store; None for others.

        Any thread.

        Raises:
            InvalidRequest, Stopping, TooManyStreams
        """
        self._check_room()
        table = self._catalog.known(ticket.namespace, ticket.table)
        if ticket.scope != "all" or table is None:
            return None
        if not (self._catalog.is_fresh(table, self._limits.refresh_s) and self._hooks.settled()):
            return None
        return self.answer(table, snapshot_all(table, self._applied_seq), ticket)

    async def open(self, ticket: Ticket) -> AnswerStream:
        """Open the answer to a ticket.

        Raises:
            UnknownTable, InvalidRequest, StaleVersion, StoreAway, Stopping, TooManyStreams
        """
        self._check_room()
        table = await self._catalog.open(ticket.namespace, ticket.table)
        snapshot = await self._snapshot(table, ticket)
        return self.answer(table, snapshot, ticket)

    def answer(
        self,
        table: TableBuffer,
        snapshot: Snapshot,
        ticket: Ticket,
        make_reader: MakeReader | None = None,
    ) -> AnswerStream:
        """Open the answer of a snapshot, which it closes. Any thread.

        Args:
            make_reader: makes the reader of what is no plain query.

        Raises:
            InvalidRequest, Stopping, TooManyStreams
        """
        try:
            # Others may have come meanwhile.
            self._check_room(taking=True)
            try:
                return self._stream(table, snapshot, ticket, make_reader)
            except BaseException:
                self._leave()
                raise
        except BaseException:
            snapshot.close()
            raise

    async def refresh(self, table: TableBuffer) -> None:
        """See others' commits as a query would."""
        await self._catalog.refresh(table, self._limits.refresh_s)

    async def preview(self, ticket: Ticket) -> tuple[pa.Schema, int, int]:
        """Return (schema, rows, bytes) of an answer: upper bounds, or -1 where they are unknown."""
        table = await self._catalog.open(ticket.namespace, ticket.table)
        await self.refresh(table)
        if ticket.scope == "version":
            assert ticket.version is not None
            state = await self._version_tail.files(table, ticket.version)
            definition, rows, nbytes = TableDefinition.of_state(state), state.rows, state.bytes
        else:
            definition, rows, nbytes = table.definition, table.rows, table.nbytes
            if ticket.scope == "live":
                rows, nbytes = -1, -1
            elif ticket.scope == "all":
                rows, nbytes = rows + table.state.rows, nbytes + table.state.bytes
            elif ticket.version not in (None, table.state.version):
                rows, nbytes = -1, -1
            if definition.keyed and table.rows:
                # What is buffered may replace, or delete, what is there already.
                rows, nbytes = -1, -1
        predicate_of(ticket.filter, definition.schema)
        marks = ticket.tells_changes and definition.keyed
        schema = projected(definition.schema, ticket.columns, marks)
        if ticket.limit is not None and rows >= 0:
            rows = min(rows, ticket.limit)
        return schema, rows, nbytes

    def statistics(self) -> StreamStatus:
        """Count the answers under way, and what they have on local disk."""
        before = time.monotonic() - STALLED_AFTER_S
        stalled = [
            stream
            for stream in self._alive()
            if not stream.expired and stream.sending_since and stream.sending_since < before
        ]
        spill = self.row_groups.result_spill
        return StreamStatus(
            open=self._open, stalled=len(stalled), files=spill.files, file_bytes=spill.file_bytes
        )

    def answer_bytes(self) -> int:
        """Return the bytes that answers may hold: a part each, what some are views of, and keys."""
        groups = self.row_groups
        return self._open * PART_BYTES + groups.views.nbytes + groups.result_spill.nbytes

    def _alive(self) -> list[AnswerStream]:
        """Return strong references: to be let go of outside the lock, as a stream may be freed."""
        with self._lock:
            return list(self._streams)

    def _expire(self, before: float) -> int:
        expired = sum(stream.expire(before) for stream in self._alive())
        self._leave(expired)
        return expired

    async def run(self) -> None:
        """Expire answers that nobody reads, and what was decoded for them, until cancelled."""
        # A sweep: nothing happens when a client stands still, or when nobody asks.
        period_s = min(1.0, max(0.01, self._limits.client_timeout_s / 4))
        while True:
            await trio.sleep(period_s)
            self.row_groups.forget_idle()
            expired = self._expire(time.monotonic() - self._limits.client_timeout_s)
            for _ in range(expired):
                self._hooks.on_expired()
            if expired:
                log.warning(
                    "answers abandoned by their clients were let go",
                    streams=expired,
                    timeout_s=self._limits.client_timeout_s,
                    runbook="slow-client",
                )

    async def wait_idle(self) -> None:
        """Open no more answers, and return when none is under way."""
        idle, token = trio.Event(), trio.lowlevel.current_trio_token()
        with self._lock:
            self.stopping = True
            if not self._open:
                return
            # The last one may end in any thread, even inside a collection.
            self._on_idle = partial(token.run_sync_soon, idle.set)
        try:
            await idle.wait()
        finally:
            self._on_idle = None

    def close_all(self) -> None:
        """Let go of every snapshot: the process ends."""
        self._expire(float("inf"))

    def _check_room(self, *, taking: bool = False) -> None:
        with self._lock:
            if self.stopping:
                raise Stopping("the daemon is stopping", retry_after_s=1.0)
            if self._open < self._limits.max_streams:
                self._open += taking
                return
        raise TooManyStreams(
            f"{self._limits.max_streams} answers are under way, as many as query.max_streams",
            retry_after_s=1.0,
        )

    def _applied_seq(self) -> int:
        return self._tree.applied_seq

    async def _snapshot(self, table: TableBuffer, ticket: Ticket) -> Snapshot:
        if ticket.scope == "version":
            assert ticket.version is not None
            return snapshot_version(
                await self._version_tail.files(table, ticket.version), self._tree.applied_seq
            )
        await self.refresh(table)
        if ticket.scope == "all":
            return snapshot_all(table, self._applied_seq)
        return await self._version_tail.buffered(table, ticket.version)

    def selection(self, definition: TableDefinition, ticket: Ticket) -> Selection:
        """Return what a ticket selects of a table. Any thread.

        Raises:
            InvalidRequest: an unknown column, or a filter that does not fit.
        """
        schema = definition.schema
        marks = ticket.tells_changes and definition.keyed
        return Selection(
            schema=projected(schema, ticket.columns, marks),
            predicate=predicate_of(ticket.filter, schema),
            limit=ticket.limit,
            marks_operations=marks,
        )

    def _stream(
        self,
        table: TableBuffer,
        snapshot: Snapshot,
        ticket: Ticket,
        make_reader: MakeReader | None,
    ) -> AnswerStream:
        selection = self.selection(snapshot.definition, ticket)
        reader: Reader
        if make_reader is not None:
            reader = make_reader(selection, self.row_groups)
        else:
            folder = f"{table.namespace}/{table.name}/v1"
            reader = PartReader(snapshot, selection, self.row_groups, folder)
            self._hooks.on_opened(table.key)
        stream = AnswerStream(table.key, reader, on_close=self._forget)
        with self._lock:
            self._streams.add(stream)
        return stream

    def _leave(self, answers: int = 1) -> None:
        with self._lock:
            self._open -= answers
            tell = None if self._open else self._on_idle
        if tell is not None:
            # Whoever waited may have given up, and the loop be gone.
            with contextlib.suppress(trio.RunFinishedError):
                tell()

    def _forget(self, stream: AnswerStream) -> None:
        with self._lock:
            self._streams.discard(stream)
        self._leave(not stream.expired)
