"""Opening answers: ticket, snapshot, stream; and expiring abandoned ones.

Work that needs the store runs on the event loop, and the snapshot is taken in one step after it.
An answer that needs nothing from the store is opened in the calling thread, because the trip to
the loop would take longer than the rest. A stream without progress for ``query.client_timeout``
loses its snapshot (tests/query/test_open_streams.py).
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.observability.status import StreamStatus
from ingester.query.fair_scheduler import CpuAccount, TurnPace, always_wanted
from ingester.query.parts import PART_BYTES
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import Snapshot, snapshot_all, snapshot_version
from ingester.query.stream import AnswerPlaces, AnswerStream, FilterRoom, Kind, Reader
from ingester.query.ticket import FilterLimits, Ticket, parse_ticket, predicate_of
from ingester.query.version_tail import VersionTail, check_table_version
from ingester.schema.align import projected
from ingester.tables.catalog import Catalog
from persist.predicate.predicate import Predicate
from persist.table import TableDefinition, TableKey

log = structlog.get_logger(__name__)

STALLED_AFTER_S = 5.0
FILTERS = 8
"""A namespace's open answers may hold filters of this many times ``query.max_filter_bytes``."""

MakeReader = Callable[[Selection, RowGroupCache, CpuAccount], Reader]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Settings of queries; durations in seconds."""

    max_streams: int
    client_timeout_s: float
    tail_retain_s: float
    refresh_s: float
    max_followers: int = 1000
    filters: FilterLimits = field(default_factory=FilterLimits)
    max_cpu_s: float = math.inf


@dataclass(frozen=True, slots=True)
class QueryHooks:
    """Callbacks into the daemon."""

    settled: Callable[[], bool] = lambda: True
    """Returns whether everything acknowledged so far is applied; may wait briefly. Called in client
    threads."""
    on_opened: Callable[[TableKey], None] = lambda table: None
    """Called with the table of each new query, in any thread."""
    on_expired: Callable[[], None] = lambda: None
    """Called for each answer that expired because its client made no progress."""


class Queries:
    """All open answers. Event loop only, except `open_at_once` and closing streams."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        limits: QueryLimits,
        row_groups: RowGroupCache,
        hooks: QueryHooks = QueryHooks(),
    ) -> None:
        self.row_groups = row_groups
        self.places = AnswerPlaces(limits.max_streams, limits.max_followers, tree.namespaces)
        self._catalog = catalog
        self._tree = tree
        self.version_tail = VersionTail(catalog, tree, retain_s=limits.tail_retain_s)
        self._limits = limits
        self._hooks = hooks
        # Weak: a stream is freed, and thereby closed, when the gRPC server drops it.
        self._streams: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        # Reentrant: garbage collection inside it may free a stream, which calls `_forget`.
        self._lock = threading.RLock()
        self._previews = trio.CapacityLimiter(1)
        self._filters = FilterRoom(FILTERS * limits.filters.nbytes)

    def open_at_once(
        self, ticket: Ticket, check_wanted: Callable[[], None] = always_wanted
    ) -> AnswerStream | None:
        """Open an answer that needs nothing from the store; None if it does. Thread-safe.

        Args:
            check_wanted: as in :meth:`answer`.

        Raises:
            BadRequest, Stopping, TooManyStreams
        """
        self.places.check("query", ticket.namespace)
        table = self._catalog.known(ticket.namespace, ticket.table)
        if ticket.scope != "all" or table is None:
            return None
        if ticket.table_version not in (None, table.state.table_version):
            return None
        if not (self._catalog.is_fresh(table, self._limits.refresh_s) and self._hooks.settled()):
            return None
        snapshot = snapshot_all(table, self._tree.upto)
        return self.answer(table, snapshot, ticket, check_wanted=check_wanted)

    async def open(self, ticket: Ticket) -> AnswerStream:
        """Open the answer to a ticket.

        Raises:
            UnknownTable, BadRequest, StaleVersion, StoreUnreachable, Stopping, TooManyStreams
        """
        return self.answer(*await self.snapshot(ticket), ticket)

    async def snapshot(self, ticket: Ticket) -> tuple[TableBuffer, Snapshot]:
        """Take the snapshot for a ticket. :meth:`answer` closes it.

        Raises:
            UnknownTable, BadRequest, StaleVersion, StoreUnreachable, Stopping, TooManyStreams
        """
        self.places.check("query", ticket.namespace)
        table = await self._catalog.open(ticket.namespace, ticket.table)
        return table, await self._snapshot(table, ticket)

    def answer(
        self,
        table: TableBuffer,
        snapshot: Snapshot,
        ticket: Ticket,
        make_reader: MakeReader | None = None,
        check_wanted: Callable[[], None] = always_wanted,
    ) -> AnswerStream:
        """Open the answer to a snapshot and take ownership of the snapshot. Thread-safe.

        Args:
            make_reader: creates the reader of a live answer; None for a query.
            check_wanted: raises if the client has disconnected, which ends the answer.

        Raises:
            BadRequest, Stopping, TooManyStreams
        """
        kind: Kind = "query" if make_reader is None else "live"
        try:
            # The last place may have been taken since the first check.
            self.places.take(kind, table.namespace)
            try:
                account = self.account(table, check_wanted)
                return self._stream(table, snapshot, ticket, make_reader, account)
            except BaseException:
                self.places.leave(kind, table.namespace)
                raise
        except BaseException:
            snapshot.close()
            raise

    def ticket(self, body: bytes) -> Ticket:
        """Parse a ticket within the filter limits. Thread-safe.

        Raises:
            BadRequest, NotAvailable
        """
        return parse_ticket(body, self._limits.filters)

    def account(
        self, table: TableBuffer, check_wanted: Callable[[], None] = always_wanted
    ) -> CpuAccount:
        """Return the processor time account of a new answer. Thread-safe."""
        return CpuAccount(table.namespace, self._limits.max_cpu_s, check_wanted)

    async def refresh(self, table: TableBuffer) -> None:
        """Load others' commits, as a query does."""
        await self._catalog.refresh(table, self._limits.refresh_s)

    async def preview(self, ticket: Ticket) -> tuple[pa.Schema, int, int]:
        """Return (schema, rows, bytes) of an answer: upper bounds, or -1 if unknown."""
        table = await self._catalog.open(ticket.namespace, ticket.table)
        await self.refresh(table)
        if ticket.scope == "version" or await self._is_elsewhere(table, ticket):
            state = await self.version_tail.files(table, ticket.version, ticket.table_version)
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
                # Buffered rows may replace or delete rows in files.
                rows, nbytes = -1, -1
        if ticket.filter:
            # In a thread, one at a time: parsing a long filter would block the loop.
            await trio.to_thread.run_sync(
                predicate_of, ticket.filter, definition.schema, limiter=self._previews
            )
        marks = ticket.tells_changes and definition.keyed
        schema = projected(definition.schema, ticket.columns, marks)
        if ticket.limit is not None and rows >= 0:
            rows = min(rows, ticket.limit)
        return schema, rows, nbytes

    def statistics(self) -> StreamStatus:
        """Return the number of open answers and their files on local disk."""
        before = time.monotonic() - STALLED_AFTER_S
        stalled = [
            stream
            for stream in self._alive()
            if not stream.expired and stream.sending_since and stream.sending_since < before
        ]
        spill = self.row_groups.result_spill
        return StreamStatus(
            open=self.places.taken,
            stalled=len(stalled),
            waiting=self.places.waiting,
            files=spill.files,
            file_bytes=spill.file_bytes,
        )

    def answer_bytes(self) -> int:
        """Return the bytes that answers may hold: parts, batches behind views, keys, filters."""
        groups = self.row_groups
        parts = self.places.taken * PART_BYTES + groups.views.nbytes
        return parts + groups.result_spill.nbytes + self._filters.nbytes

    def _alive(self) -> list[AnswerStream]:
        """Return strong references. Drop them outside the lock, because that may free a stream."""
        with self._lock:
            return list(self._streams)

    def _expire(self, before: float) -> int:
        expired = [stream for stream in self._alive() if stream.expire(before)]
        for stream in expired:
            self.places.leave(stream.kind, stream.table[0])
        return len(expired)

    async def run(self) -> None:
        """Expire abandoned answers and their decoded row groups until cancelled."""
        # Polled: a client that stops reading causes no event.
        period_s = min(1.0, max(0.01, self._limits.client_timeout_s / 4))
        while True:
            await trio.sleep(period_s)
            self.row_groups.forget_idle()
            expired = self._expire(time.monotonic() - self._limits.client_timeout_s)
            for _ in range(expired):
                self._hooks.on_expired()
            if expired:
                log.warning(
                    "abandoned answers expired",
                    streams=expired,
                    timeout_s=self._limits.client_timeout_s,
                    runbook="slow-client",
                )

    def close_all(self) -> None:
        """Release every snapshot at the end of the process."""
        self._expire(float("inf"))

    async def _snapshot(self, table: TableBuffer, ticket: Ticket) -> Snapshot:
        if ticket.scope == "version":
            files = await self.version_tail.files(table, ticket.version, ticket.table_version)
            return snapshot_version(files, self._tree.upto(table))
        await self.refresh(table)
        if ticket.scope == "all":
            if await self._is_elsewhere(table, ticket):
                # Buffered rows belong to the current table version.
                files = await self.version_tail.files(table, None, ticket.table_version)
                return snapshot_version(files, self._tree.upto(table))
            return snapshot_all(table, self._tree.upto)
        await self.version_tail.check_current(table, ticket)
        snapshot = await self.version_tail.buffered(table, ticket.version)
        try:
            # A switch may have happened meanwhile and changed the columns.
            check_table_version(table, ticket)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    async def _is_elsewhere(self, table: TableBuffer, ticket: Ticket) -> bool:
        """Return whether a ticket names another table version than the current one."""
        asked = ticket.table_version
        if asked is not None and asked != table.state.table_version:
            await self._catalog.refresh(table, -1.0)
        return asked not in (None, table.state.table_version)

    def selection(
        self, definition: TableDefinition, ticket: Ticket, account: CpuAccount
    ) -> Selection:
        """Return the columns and rows that a ticket selects. Thread-safe; parses filters in a turn.

        Raises:
            BadRequest: an unknown column, or a filter that does not fit.
            TooSlow: parsing the filter exceeded the answer's processor time.
        """
        schema, scheduler = definition.schema, self.row_groups.scheduler
        predicate = Predicate(())
        if ticket.filter:
            with scheduler.turn(account):
                predicate = predicate_of(ticket.filter, schema, TurnPace(scheduler).let_others)
        marks = ticket.tells_changes and definition.keyed
        return Selection(
            schema=projected(schema, ticket.columns, marks),
            predicate=predicate,
            limit=ticket.limit,
            marks_operations=marks,
        )

    def _stream(
        self,
        table: TableBuffer,
        snapshot: Snapshot,
        ticket: Ticket,
        make_reader: MakeReader | None,
        account: CpuAccount,
    ) -> AnswerStream:
        selection = self.selection(snapshot.definition, ticket, account)
        reader: Reader
        if make_reader is not None:
            reader = make_reader(selection, self.row_groups, account)
        else:
            reader = PartReader(snapshot, selection, self.row_groups, table.key, account)
        kind: Kind = "query" if make_reader is None else "live"
        self._filters.take(table.namespace, selection.predicate.nbytes)
        if make_reader is None:
            self._hooks.on_opened(table.key)
        stream = AnswerStream(table.key, reader, kind, on_close=self._forget)
        with self._lock:
            self._streams.add(stream)
        return stream

    def _forget(self, stream: AnswerStream) -> None:
        with self._lock:
            self._streams.discard(stream)
        self._filters.leave(stream.table[0], stream.selection.predicate.nbytes)
        if not stream.expired:
            self.places.leave(stream.kind, stream.table[0])
