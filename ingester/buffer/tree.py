"""Applies operations to the buffers of their partitions.

Everything here is synchronous and runs on the event loop. It changes a table under the table's
lock, so an operation appears in all of its partitions at once, for the loop and for every
thread. Log order is buffer order.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from ingester.buffer.handle import BufferHandle, PersistedFiles
from ingester.buffer.shared_memory import SharedMemories, SharedMemory
from ingester.buffer.table import AtomicFlush, FlushJob, PartitionBuffer, TableBuffer
from ingester.dml.operation import Operation
from ingester.memory.ledger import MemoryLedger
from ingester.observability.status import Buffered
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.checkpoints import Checkpoints, PendingCheckpoint
from ingester.origins.registry import Origins
from ingester.origins.tenure import Tenure
from ingester.quotas.namespaces import Namespaces
from persist.manifest import TableState
from persist.table import TableDefinition, TableKey
from wal import Route, RouteState

Why = Literal[
    "age",
    "lag",
    "bytes",
    "messages",
    "memory",
    "partitions",
    "disk",
    "epoch",
    "asked",
    "stop",
]
"""Why a buffer is frozen."""


class Aging(NamedTuple):
    """What decides at which age a buffer is frozen."""

    max_age_s: float | None
    """The table's own age of buffers; None leaves it to the daemon."""
    replicated: bool
    """Whether replication started the buffer."""


@dataclass(frozen=True, slots=True)
class FreezeLimits:
    """Limits at which a buffer is frozen regardless of its age."""

    partition_bytes: int
    """Size of one partition's buffer in memory."""
    messages: int = 1 << 62
    """Replication messages whose rows it contains."""
    checkpoints: int = 1 << 31
    """Partitions of sources whose checkpoints a table may keep; not a limit of a buffer."""


@dataclass(frozen=True, slots=True)
class TreeHooks:
    """Callbacks. All run on the loop and must not block."""

    on_freeze: Callable[[FlushJob, Why], None] = lambda job, why: None
    """Called with each frozen buffer, which must be flushed."""
    on_first_row: Callable[[], None] = lambda: None
    """Called when a new buffer is the oldest one."""
    on_release: Callable[[TableBuffer, BufferHandle], None] = lambda table, handle: None
    """Called with each buffer that a version releases, under the table's lock."""
    on_checkpoint: Callable[[], None] = lambda: None
    """Called with a checkpoint that is the only pending one of its table."""
    on_released: Callable[[int], None] = lambda nbytes: None
    """Called with the bytes of each released buffer."""


class BufferTree:
    """The buffers of all tables."""

    def __init__(
        self,
        ledger: MemoryLedger,
        origins: Origins,
        limits: FreezeLimits,
        hooks: TreeHooks,
        *,
        ingester_id: str = "",
        namespaces: Namespaces | None = None,
    ) -> None:
        """Args:
        ingester_id: this daemon's id, which distinguishes its own operations.
        namespaces: quota use by namespace; by default there are no quotas.
        """
        self.namespaces = Namespaces() if namespaces is None else namespaces
        self.tables: dict[TableKey, TableBuffer] = {}
        self.applied_seq = 0
        """The highest applied sequence; of a table whose operations ship, lower ones may wait."""
        self._local_seq = 0
        """Every operation up to it that did not ship is applied."""
        self.live_partitions = 0
        """Number of partitions with a buffer, over all tables."""
        self.aging: dict[Aging, OrderedDict[BufferHandle, PartitionBuffer]] = {}
        """Active buffers with their partitions: those that become due at the same age together,
        oldest first."""
        self.replayed: dict[int, float] = {}
        """When each replayed log segment was last written, by the monotonic clock."""
        self._unreleased: dict[float | None, OrderedDict[BufferHandle, None]] = {}
        """Unflushed buffers by their own age, in the order of their opening."""
        self._ledger = ledger
        self.origins = origins
        self.checkpoints = Checkpoints(limits.checkpoints)
        """Checkpoints that came with operations and are in no version yet."""
        self.ingester_id = ingester_id
        self._limits = limits
        self._hooks = hooks
        self._shared_memories = SharedMemories()
        self._segments: Counter[int] = Counter()
        """Number of buffers whose first row is in each log segment."""

    def statistics(self) -> Buffered:
        """Return what the buffers of all tables hold."""
        tables = self.tables.values()
        return Buffered(
            rows=sum(table.rows for table in tables),
            bytes=sum(table.nbytes for table in tables),
            partitions=sum(len(table.partitions) for table in tables),
        )

    def definition_of(self, table: TableKey) -> TableDefinition:
        """Return a table's current definition. A table that operations name is in the tree."""
        return self.tables[table].definition

    def upto(self, table: TableBuffer) -> int:
        """Return the table's position: its buffers and files have exactly what it has up to there.

        It never falls. Thread-safe. The caller holds the table's lock if it reads buffers, too.
        """
        with table.lock:
            # Read first: whatever lies below and is not applied is known to wait by then.
            shipped = table.route.state is RouteState.SHIPPED
            position = self.applied_seq if shipped else self._local_seq
            if (waiting := table.route.first_waiting) is not None:
                position = min(position, waiting - 1)
            return max(position, table.newest[1])

    def upto_in(self, tables: Iterable[TableKey]) -> int:
        """Return the lowest position of these tables, or the newest sequence without any."""
        found = [self.upto(self.tables[key]) for key in tables if key in self.tables]
        return min(found, default=self.applied_seq)

    def routes_with(self, own: tuple[Route, ...], origins: Iterable[str]) -> tuple[Route, ...]:
        """Return routes with those of all tables of these origins, which ship together. Any thread.

        A log object then never has an operation of an origin without the earlier ones being in the
        store, so its sequences have no gap when the disk is lost (tests/lost_machine).
        """
        found = dict.fromkeys(own)
        for name in origins:
            known = self.origins.find(name)
            if known is not None and len(known.tables) > 1:
                # Copied in one step: the loop may add a table.
                tables = [self.tables.get(key) for key in list(known.tables)]
                found.update((table.route, None) for table in tables if table is not None)
        return own if len(found) == len(own) else tuple(found)

    def apply(self, operation: Operation) -> None:
        """Append every part to its partition's active buffer. Atomic: no await until all are in."""
        table = self.tables[operation.table]
        memory = self._shared_memories.new() if operation.shares_memory else None
        with table.lock:
            self._apply(table, operation, memory)
        self._look_later(memory)

    def apply_together(self, operations: Sequence[Operation]) -> None:
        """Apply operations of several tables so that no reader sees one without the others.

        Each becomes visible in its table at once; a reader that sees one of them sees all.
        """
        applied = [(self.tables[operation.table], operation) for operation in operations]
        shares = any(operation.shares_memory for operation in operations)
        memory = self._shared_memories.new() if shares else None
        with ExitStack() as locks:
            # In any order: reading threads hold one table's lock at a time.
            for table, _ in applied:
                locks.enter_context(table.lock)
            for table, operation in applied:
                self._apply(table, operation, memory if operation.shares_memory else None)
        self._look_later(memory)

    def _look_later(self, memory: SharedMemory | None) -> None:
        if memory is not None:
            self._shared_memories.look_later(memory)
            self._shared_memories.look()

    def _apply(self, table: TableBuffer, operation: Operation, memory: SharedMemory | None) -> None:
        spec_id = operation.spec_id
        if operation.messages:
            self._begin_set(table, (operation.epoch, table.definition.max_age_s))
        holders: list[BufferHandle] = []
        open_before = len(table.partitions)
        grown = 0
        for values, batch, nbytes, row_counts in operation.parts:
            handle = self._active(table, table.partition((spec_id, values)), operation)
            before = handle.rows.nbytes
            if memory is not None:
                memory.add(nbytes, partial(self._compact, table, handle, handle.rows.rows))
            handle.rows.append(
                batch,
                seq=operation.seq,
                nbytes=nbytes,
                schema_number=operation.schema_number,
                row_counts=row_counts,
                memory=memory,
            )
            handle.last_seq = operation.seq + (row_counts[-1][0] if row_counts else 0)
            handle.messages += operation.messages
            grown += handle.rows.nbytes - before
            holders.append(handle)
        table.nbytes += grown
        table.use.held_bytes += grown
        self._ledger.buffered += grown
        if operation.traces:
            for handle in holders:
                handle.note_traces(operation.traces)
        self.live_partitions += len(table.partitions) - open_before
        table.rows += operation.rows
        table.newest = (operation.epoch, operation.last_seq)
        self.applied_seq = max(self.applied_seq, operation.last_seq)
        if not operation.in_store:
            table.on_disk_only += operation.operations
            self._local_seq = max(self._local_seq, operation.last_seq)
        table.route.applied(operation.last_seq)
        tenure = self._note_sequences(table, operation, holders)
        if operation.checkpoint is not None:
            self._note_checkpoint(table, operation, operation.checkpoint, tenure)
        for handle in holders:
            if handle.rows.nbytes >= self._limits.partition_bytes:
                self.freeze(table.partitions[handle.partition], "bytes")
            elif handle.messages >= self._limits.messages:
                self.freeze(table.partitions[handle.partition], "messages")
        if table.on_applied is not None:
            table.on_applied()

    def _compact(self, table: TableBuffer, handle: BufferHandle, start: int) -> None:
        """Copy the chunk that begins at a row of a buffer if it shares memory."""
        if handle.released or not (grown := handle.rows.compact(start)):
            return
        table.nbytes += grown
        table.use.held_bytes += grown
        if handle.frozen:
            table.use.frozen_bytes += grown
            self._ledger.frozen += grown
        else:
            self._ledger.buffered += grown

    def _note_sequences(
        self, table: TableBuffer, operation: Operation, holders: list[BufferHandle]
    ) -> Tenure | None:
        """Note the sequences of origins; return the tenure of the last one."""
        tenure = None
        shared = len(holders) > 1 and operation.operations > 1
        counts = [dict(part.row_counts or ()) for part in operation.parts] if shared else []
        for number, origin, sequence, content in operation.numbered:
            its = holders
            if shared:
                pairs = zip(holders, counts, strict=True)
                its = [handle for handle, rows_of in pairs if number in rows_of]
            tenure = self.origins.note_applied(
                origin,
                table.key,
                sequence,
                operation.seq + number,
                its,
                (self.ingester_id, operation.epoch),
                operation.spec_id,
                content,
                in_store=operation.in_store,
            )
            for handle in its:
                handle.origins[tenure] = sequence
        return tenure

    def _note_checkpoint(
        self,
        table: TableBuffer,
        operation: Operation,
        checkpoint: SourceCheckpoint,
        tenure: Tenure | None,
    ) -> None:
        process = (self.ingester_id, operation.epoch)
        stamp = checkpoint.stamp(
            process, operation.seq, operation.origin, operation.origin_sequence
        )
        # On replay the table's version may already have this one, or a newer one.
        if not stamp.replaces(table.state.checkpoints.get(checkpoint.partition)):
            return
        pending = PendingCheckpoint(
            checkpoint, stamp, operation.segment, tenure, noted_at=time.monotonic()
        )
        if self.checkpoints.note(table.key, pending):
            self._hooks.on_checkpoint()

    def active(self) -> Iterator[tuple[BufferHandle, PartitionBuffer]]:
        """All active buffers with their partitions, oldest first."""
        each = (buffers.items() for buffers in self.aging.values())
        yield from heapq.merge(*each, key=lambda item: item[0].opened_at)

    def freeze(self, partition: PartitionBuffer, why: Why = "asked") -> FlushJob | None:
        """Freeze a partition's active buffer and hand it over for flushing; None if there is none.

        If replication has written to it, the active buffers of the table's other partitions with
        replicated rows are frozen too, because a transaction is flushed as a whole.
        """
        asked = partition.active
        if asked is None:
            return None
        table = self.tables[partition.table]
        handles = self._replicated(table) if asked.messages else (asked,)
        atomic = AtomicFlush(handles) if len(handles) > 1 else None
        jobs = [
            FlushJob(table, table.partitions[handle.partition], handle, atomic)
            for handle in handles
        ]
        with table.lock:
            for job in jobs:
                job.partition.freeze(time.monotonic())
        for handle in handles:
            self._drop(handle)
            self._ledger.buffered -= handle.nbytes
            self._ledger.frozen += handle.nbytes
            table.use.frozen_bytes += handle.nbytes
        for job in jobs:
            self._hooks.on_freeze(job, why)
        return next(job for job in jobs if job.handle is asked)

    def _begin_set(self, table: TableBuffer, of: tuple[int, float | None]) -> None:
        """Freeze buffers of another epoch or age before any part of an operation is buffered, so
        that a set has all of it or nothing.
        """
        if table.replicated_in == of:
            return
        table.replicated_in = of
        for handle in self._replicated(table):
            if (handle.epoch, handle.max_age_s) != of and not handle.frozen:
                self.freeze(table.partitions[handle.partition], "epoch")

    def _replicated(self, table: TableBuffer) -> tuple[BufferHandle, ...]:
        """Active buffers of a table with replicated changes."""
        active = (partition.active for partition in table.partitions.values())
        return tuple(handle for handle in active if handle is not None and handle.messages)

    def install(
        self,
        table: TableBuffer,
        state: TableState,
        persisted: Sequence[tuple[BufferHandle, PersistedFiles]],
    ) -> list[BufferHandle]:
        """Install a manifest version and release the buffers whose files it has.

        Atomic: either all are released and the version is installed, or nothing happens.

        Returns:
            Buffers that must be spilled first; empty if it is done.
        """
        with table.lock:
            for handle, files in persisted:
                handle.note_files(files)
            releasing: list[BufferHandle] = []
            for handle, _ in persisted:
                if not handle.begin_release():
                    for other in releasing:
                        other.abort_release()
                    return [handle for handle, _ in persisted if handle.needs_spill()] or [handle]
                releasing.append(handle)
            table.install(state)
            for handle in releasing:
                nbytes, rows = handle.nbytes, handle.total_rows
                self._hooks.on_release(table, handle)
                handle.release()
                self._forget(table, handle, nbytes, rows)
        # Here too, because no further message may arrive for long.
        self._shared_memories.look()
        return []

    def first_needed_segment(self, default: int) -> int:
        """Oldest log segment with rows or checkpoints that no committed version has."""
        return self.checkpoints.first_needed_segment(min(self._segments, default=default))

    def oldest_s(self) -> float | None:
        """Age of the oldest unflushed row in seconds; None if there is none."""
        return max((age_s for _, age_s in self.oldest_by_age()), default=None)

    def oldest_by_age(self) -> Iterator[tuple[float | None, float]]:
        """Each own age of tables, None for tables without one, and the age of the oldest unflushed
        row of these tables, in seconds.
        """
        now = time.monotonic()
        for own_s, buffers in self._unreleased.items():
            yield own_s, max(0.0, now - next(iter(buffers)).written_at)

    def unreleased(self) -> Iterator[BufferHandle]:
        """All unflushed buffers of all tables."""
        for table in self.tables.values():
            yield from table.handles()

    def _active(
        self, table: TableBuffer, partition: PartitionBuffer, operation: Operation
    ) -> BufferHandle:
        handle, own_s = partition.active, table.definition.max_age_s
        if handle is not None and (handle.epoch, handle.max_age_s) != (operation.epoch, own_s):
            self.freeze(partition, "epoch" if handle.epoch != operation.epoch else "age")
            handle = None
        if handle is None:
            handle = partition.active = BufferHandle(
                partition.key,
                keyed=table.definition.keyed,
                epoch=operation.epoch,
                first_seq=operation.seq,
                segment=operation.segment,
            )
            now = handle.opened_at = time.monotonic()
            handle.written_at = self.replayed.get(operation.segment, now)
            handle.max_age_s = own_s
            aging = self.aging.setdefault(Aging(own_s, bool(operation.messages)), OrderedDict())
            aging[handle] = partition
            self._unreleased.setdefault(own_s, OrderedDict())[handle] = None
            self._segments[operation.segment] += 1
            if len(aging) == 1:
                self._hooks.on_first_row()
        return handle

    def _drop(self, handle: BufferHandle) -> None:
        """Take a buffer, which is no longer active, out of :attr:`aging`."""
        for replicated in (False, True):
            aging = Aging(handle.max_age_s, replicated)
            if handle in (buffers := self.aging.get(aging, OrderedDict())):
                del buffers[handle]
                if not buffers:
                    del self.aging[aging]

    def _forget(self, table: TableBuffer, handle: BufferHandle, nbytes: int, rows: int) -> None:
        partition = table.partitions[handle.partition]
        partition.frozen.remove(handle)
        if (unreleased := self._unreleased.get(handle.max_age_s)) is not None:
            unreleased.pop(handle, None)
            if not unreleased:
                del self._unreleased[handle.max_age_s]
        if partition.empty:
            gone = table.partitions.pop(partition.key, None) is not None
            table.use.partitions -= gone
            self.live_partitions -= gone
        table.nbytes -= nbytes
        table.use.held_bytes -= nbytes
        table.use.frozen_bytes -= nbytes
        table.rows -= rows
        if not table.rows:
            table.on_disk_only = 0
        self._ledger.frozen -= nbytes
        self._hooks.on_released(nbytes)
        self._segments[handle.first_segment] -= 1
        if not self._segments[handle.first_segment]:
            del self._segments[handle.first_segment]
        self.origins.note_released(handle, handle.origins)
