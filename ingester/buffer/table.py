"""One table in the daemon: its definition, the installed manifest version, and its partitions.

Law of this file: ``state`` (files) and ``partitions`` (buffers) together hold every acknowledged
row exactly once whenever the lock is free. The loop alone changes them, and holds the lock while it
does; a thread that holds it sees them together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ingester.buffer.handle import BufferHandle
from ingester.buffer.write_latch import WriteLatch
from ingester.errors import MadeAnew
from ingester.observability.status import Buffered, Persisted, TableStatus, TransformerStatus
from ingester.observability.table_detail import BufferedPartition, TableView
from ingester.quotas.use import NamespaceUse
from persist.manifest import PartitionKey, TableState
from persist.table import TableDefinition, TableKey


class PartitionBuffer:
    """The buffers of one partition of one table. Loop only."""

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
        """Whether nothing is buffered, so that the partition can be forgotten."""
        return self.active is None and not self.frozen

    def freeze(self, now: float) -> BufferHandle | None:
        """Take everything buffered so far out of the way of new writes, keeping it readable.

        Args:
            now: the loop's clock, seconds.

        Returns:
            The frozen buffer, with at least one row, covering ``first_seq..last_seq`` of this
            partition without gaps; ``None`` when the buffer is empty.
        """
        handle = self.active
        if handle is None:
            return None
        handle.freeze(now)
        self.active = None
        self.frozen.append(handle)
        return handle


class TableBuffer:
    """A table's buffers and the manifest version they complete.

    Loop only, but for single reads, and for what is read under the lock.
    """

    def __init__(
        self, namespace: str, name: str, state: TableState, use: NamespaceUse | None = None
    ) -> None:
        """``use``: what the namespace has in all; by default the table is alone in it."""
        self.use = NamespaceUse(namespace) if use is None else use
        self.lock = threading.RLock()
        self.write_latch = WriteLatch()
        """The latch of a keyed table's writes."""
        self.namespace = namespace
        self.name = name
        self.state = state
        self.definition = TableDefinition.of_state(state)
        self.partitions: dict[PartitionKey, PartitionBuffer] = {}
        self.rows = 0
        self.nbytes = 0
        self.newest = (-1, -1)
        """(epoch, sequence) of the last operation that was applied to the table."""
        self.dropped_epoch = -1
        """The newest epoch of which operations may be nobody's here: replay, or an adoption, has
        left them to whoever has their origin now."""
        self.on_applied: Callable[[], None] | None = None
        """Is called after each operation while somebody waits for one."""
        self.replicated_epoch = -1
        """The epoch of the last operation that replication brought."""
        self.refreshed_at = 0.0
        """The time when the newest version was last looked for, on the monotonic clock."""
        self.transformed_by: tuple[tuple[str, str], ...] | None = None
        """The transformers, with versions, that this daemon has put into the table's manifest."""
        self.moved = (state.table_version, state.version)
        """The table version and version since which rows of an origin are not where they were: this
        daemon took it over from another one, or left out what another one took; at first those that
        this process began with."""
        self.scattered_until = float("-inf")
        """The time, on the monotonic clock, until which small batches are not coalesced: some had
        many partitions. Any thread."""
        self.registered = False
        """Whether this incarnation stands in the table's manifest as a writer."""

    @property
    def key(self) -> TableKey:
        """(namespace, table)"""
        return (self.namespace, self.name)

    def install(self, state: TableState) -> None:
        """Answer from this manifest version from now on. Atomic with the release of its buffers."""
        if state.place < self.state.place:
            return
        changed = _defining(state) != _defining(self.state)
        definition = TableDefinition.of_state(state) if changed else self.definition
        with self.lock:
            self.state, self.definition = state, definition

    def check_shape(self, definition: TableDefinition) -> None:
        """Raise MadeAnew where a definition is of the table as it was before a copy made it anew.

        Any thread; under the write latch it stays so.
        """
        if definition.first_schema_id != self.definition.first_schema_id:
            raise MadeAnew(
                f"table {self.namespace}/{self.name} was made anew since: open the stream again, or"
                " begin the transaction again"
            )

    def partition(self, key: PartitionKey) -> PartitionBuffer:
        """The partition, made when it is new."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionBuffer(self.key, key)
            self.use.partitions += 1
        return partition

    def statistics(self) -> TableStatus:
        """The numbers of the table's rows in buffers and in files."""
        opened = min((handle.written_at for handle in self.handles()), default=None)
        return TableStatus(
            namespace=self.namespace,
            table=self.name,
            manifest_version=self.state.version,
            table_version=self.state.table_version,
            buffered=Buffered(rows=self.rows, bytes=self.nbytes, partitions=len(self.partitions)),
            persisted=Persisted(
                rows=self.state.rows, bytes=self.state.bytes, files=self.state.file_count
            ),
            oldest_buffered_s=None if opened is None else round(time.monotonic() - opened, 3),
            transformers=[
                TransformerStatus(name=each.name, version=each.version, previous=each.previous)
                for each in self.definition.transformers
            ],
        )

    def view(self) -> TableView:
        """The table as it is now, to be told of in a thread. On the loop."""
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
    """What a definition is made of. (Older specs change with the current one alone.)"""
    return (state.current_schema, state.current_spec, state.properties)
