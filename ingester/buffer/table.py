"""One table at the daemon: its definition, the installed manifest version, and its partitions.

``state`` (files) and ``partitions`` (buffers) together contain every acknowledged row exactly
once whenever the lock is free. Only the event loop changes them, holding the lock; a thread that
holds the lock sees both consistently.

The :class:`WriteLatch` of a keyed table is shared by writes; a transaction that reads first holds
it exclusively::

    a plain write       shared       enter ─ log ─ apply ─ leave, any number at a time
    a transaction       exclusive    after all that have entered, before all that follow

What the exclusive holder reads precedes in the log whatever it writes (tests/buffer). Writers'
threads block; the event loop only awaits.

A freeze returns a :class:`FlushJob`: a frozen buffer, its table and its partition. Making files
needs the rows and their identity but no buffer; :class:`RowsToFlush` is just that, for frozen
buffers and for adopted logs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ingester.buffer.handle import BufferHandle
from ingester.buffer.rows import BufferedRows
from ingester.errors import IngesterError, ReplacedByCopy
from ingester.observability.status import Buffered, PersistedRows, TableStatus, TransformerStatus
from ingester.observability.table_detail import BufferedPartition, TableView
from ingester.quotas.use import NamespaceUse
from persist.manifest import PartitionKey, TableState, version_folder
from persist.partitioning import folder_of
from persist.table import TableDefinition, TableKey
from wal import Route


class WriteLatch:
    """The latch of one keyed table."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._exclusive = False
        self._refusal: IngesterError | None = None
        self._tell_idle: Callable[[], None] | None = None
        self._turn = trio.Lock()
        self._open = trio.Event()

    def enter(self) -> None:
        """Start an operation once no transaction holds the latch. Writers' threads only.

        Raises:
            IngesterError: the error given to :meth:`refuse`.
        """
        with self._changed:
            while self._exclusive:
                self._check()
                self._changed.wait()
            self._under_way += 1

    def leave(self, operations: int = 1) -> None:
        """End operations that are applied or never will be. Thread-safe."""
        with self._changed:
            self._under_way -= operations
            if self._under_way == 0 and self._tell_idle is not None:
                self._tell_idle()

    def refuse(self, why: IngesterError | None) -> None:
        """Refuse everything that waits for the exclusive holder, now and later; None ends that.

        For an exclusive holder that does not know when it will finish.
        """
        with self._changed:
            self._refusal = why
            self._changed.notify_all()
        self._open.set()

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Share the latch on the event loop, as between :meth:`enter` and :meth:`leave`."""
        while True:
            with self._changed:
                if not self._exclusive:
                    self._under_way += 1
                    break
                self._check()
                again = self._open
            await again.wait()
        try:
            yield
        finally:
            self.leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the latch exclusively, on the event loop."""
        self._check()
        async with self._turn:
            idle = trio.Event()
            loop = trio.lowlevel.current_trio_token()
            with self._changed:
                self._exclusive = True
                self._open = trio.Event()
                self._tell_idle = lambda: loop.run_sync_soon(idle.set)
                if self._under_way == 0:
                    idle.set()
            try:
                await idle.wait()
                yield
            finally:
                with self._changed:
                    self._exclusive = False
                    self._refusal = None
                    self._tell_idle = None
                    self._changed.notify_all()
                self._open.set()


class PartitionBuffer:
    """The buffers of one partition. Event loop only."""

    def __init__(self, table: TableKey, key: PartitionKey) -> None:
        self.table = table
        self.key = key
        self.active: BufferHandle | None = None
        self.frozen: deque[BufferHandle] = deque()

    def handles(self) -> Iterator[BufferHandle]:
        """Unreleased buffers in log order."""
        yield from self.frozen
        if self.active is not None:
            yield self.active

    @property
    def empty(self) -> bool:
        """Whether nothing is buffered, so that the partition can be dropped."""
        return self.active is None and not self.frozen

    def freeze(self, now: float) -> BufferHandle | None:
        """Take everything buffered so far out of the way of new writes, keeping it readable.

        Args:
            now: the loop's clock, in seconds.

        Returns:
            The frozen buffer with at least one row, covering ``first_seq..last_seq`` of this
            partition without gaps; ``None``
            if the buffer is empty.
        """
        handle = self.active
        if handle is None:
            return None
        handle.freeze(now)
        self.active = None
        self.frozen.append(handle)
        return handle


class TableBuffer:
    """A table's buffers, and the manifest version that they complete.

    Event loop only, except for single reads and for reads under the lock.
    """

    def __init__(
        self, namespace: str, name: str, state: TableState, use: NamespaceUse | None = None
    ) -> None:
        """``use``: the namespace's quota use; by default the table is alone in it."""
        self.use = NamespaceUse(namespace) if use is None else use
        self.lock = threading.RLock()
        self.write_latch = WriteLatch()
        """Latch on a keyed table's writes."""
        self.route = Route(f"{namespace}/{name}")
        """Whether operations wait for the store before they are applied."""
        self.namespace = namespace
        self.name = name
        self.state = state
        self.definition = TableDefinition.of_state(state)
        self.partitions: dict[PartitionKey, PartitionBuffer] = {}
        self.rows = 0
        self.nbytes = 0
        self.on_disk_only = 0
        """Operations since the table had no buffered rows that the store log does not have."""
        self.newest = (-1, -1)
        """(epoch, sequence) of the last applied operation."""
        self.dropped_epoch = -1
        """Newest epoch with operations that replay or an adoption left to another owner of their
        origin."""
        self.on_applied: Callable[[], None] | None = None
        """Called after each operation while a call waits for one."""
        self.replicated_in: tuple[int, float | None] = (-1, None)
        """Epoch of the last operation from replication, and the table's own age of buffers then."""
        self.refreshed_at = 0.0
        """When the newest version was last looked up, by the monotonic clock."""
        self.transformed_by: tuple[tuple[str, str], ...] | None = None
        """Transformers, with versions, that this daemon recorded in the table's manifest."""
        self.moved = (state.table_version, state.version)
        """Table version and version since which rows of an origin may have moved: this daemon
        took the origin over, or left out rows that another one took over. Initially those of
        the process's start."""
        self.scattered_until = float("-inf")
        """Small batches are not coalesced until then, by the monotonic clock, because some had
        many partitions. Thread-safe."""
        self.registered = False
        """Whether this incarnation is recorded as a writer in the manifest."""

    @property
    def key(self) -> TableKey:
        """(namespace, table)"""
        return (self.namespace, self.name)

    def install(self, state: TableState) -> None:
        """Install a manifest version. Atomic with the release of its buffers."""
        if state.place < self.state.place:
            return
        changed = _defining(state) != _defining(self.state)
        definition = TableDefinition.of_state(state) if changed else self.definition
        with self.lock:
            self.state, self.definition = state, definition

    def check_shape(self, definition: TableDefinition) -> None:
        """Raise ReplacedByCopy if a definition precedes a copy that replaced the table.

        Thread-safe; stays true under the write latch.
        """
        if definition.first_schema_id != self.definition.first_schema_id:
            raise ReplacedByCopy(
                f"table {self.namespace}/{self.name} was replaced by a copy: reopen the stream or"
                " restart the transaction"
            )

    def partition(self, key: PartitionKey) -> PartitionBuffer:
        """Return the partition, created on first use."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionBuffer(self.key, key)
            self.use.partitions += 1
        return partition

    def statistics(self) -> TableStatus:
        """Return the numbers of the table's buffered and flushed rows."""
        opened = min((handle.written_at for handle in self.handles()), default=None)
        return TableStatus(
            namespace=self.namespace,
            table=self.name,
            manifest_version=self.state.version,
            table_version=self.state.table_version,
            buffered=Buffered(rows=self.rows, bytes=self.nbytes, partitions=len(self.partitions)),
            persisted=PersistedRows(
                rows=self.state.rows, bytes=self.state.bytes, files=self.state.file_count
            ),
            oldest_buffered_s=None if opened is None else round(time.monotonic() - opened, 3),
            transformers=[
                TransformerStatus(name=each.name, version=each.version, previous=each.previous)
                for each in self.definition.transformers
            ],
        )

    def view(self) -> TableView:
        """Return the table's current facts for reporting in a thread. Event loop only."""
        now = time.monotonic()
        return TableView(
            key=self.key,
            state=self.state,
            definition=self.definition,
            buffered={key: _buffered(each, now) for key, each in self.partitions.items()},
            seen_s=round(now - self.refreshed_at, 3),
        )

    def handles(self) -> Iterator[BufferHandle]:
        """All unreleased buffers, partition by partition, each in log order."""
        for partition in self.partitions.values():
            yield from partition.handles()


def _buffered(partition: PartitionBuffer, now: float) -> BufferedPartition:
    handles = list(partition.handles())
    return BufferedPartition(
        rows=sum(each.rows.rows for each in handles),
        bytes=sum(each.nbytes for each in handles),
        frozen=len(partition.frozen),
        oldest_s=max((round(now - each.written_at, 3) for each in handles), default=None),
    )


def _defining(state: TableState) -> tuple[object, ...]:
    """Return the parts of a state that define the table. (Older specs change only with the
    current one.)
    """
    return (state.current_schema, state.current_spec, state.properties)


@dataclass(frozen=True, slots=True, eq=False)
class RowsToFlush:
    """Rows of one partition and one epoch, in log order, to be written to files."""

    table: TableKey
    partition: PartitionKey
    epoch: int
    first_seq: int
    last_seq: int
    """Sequences of the first and the last operation, both inclusive."""
    rows: BufferedRows

    def folder_of(self, state: TableState) -> str:
        """The store folder of this table version's files."""
        return version_folder(*self.table, state.table_version)


class AtomicFlush:
    """Buffers of one table that are committed in one version.

    ``dissolved`` means that one of them cannot be flushed, so that each is committed separately.
    """

    __slots__ = ("dissolved", "members")

    def __init__(self, members: Iterable[BufferHandle]) -> None:
        self.members = frozenset(members)
        self.dissolved = False


@dataclass(frozen=True, slots=True, eq=False)
class FlushJob:
    """A frozen buffer to be flushed."""

    table: TableBuffer
    partition: PartitionBuffer
    handle: BufferHandle
    atomic: AtomicFlush | None = None
    """The buffers, including this one, that must be committed in one version."""

    @property
    def partition_name(self) -> str:
        """The folder name, ``time_day=2026-11-21``; empty for an unpartitioned table."""
        spec_id, values = self.handle.partition
        return folder_of(self.table.definition.spec_of(spec_id), values)

    @property
    def rows(self) -> RowsToFlush:
        """The rows to write to files."""
        handle = self.handle
        return RowsToFlush(
            self.table.key,
            handle.partition,
            handle.epoch,
            handle.first_seq,
            handle.last_seq,
            handle.rows,
        )
