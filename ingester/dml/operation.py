"""An operation is a batch of one table, split by partition, on its way into the buffers.

Small batches of one schema that wait for the log together become a *coalesced batch*: one record of
the log that stands for many operations, each with a sequence of its own. It travels as one object
of the class below.

A transaction is operations of several tables that go as one record and become visible together.

Law of this file: an operation is visible whole or not at all, and so is a transaction. Its identity
for ever is (ingester id, epoch, sequence), given by the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ingester.origins.checkpoint_state import Checkpoint
from persist.manifest import PartitionKey
from persist.table import TableKey
from wal import Entry

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace
from typing import NamedTuple

import pyarrow as pa

from persist.partitioning import PartitionValues

RowCounts = tuple[tuple[int, int], ...]
"""The rows of each operation of a coalesced batch, in order: (its number in the batch, its rows).
An operation without rows is left out."""


class Part(NamedTuple):
    """The rows of an operation that belong to one partition."""

    values: PartitionValues
    batch: pa.RecordBatch
    nbytes: int
    row_counts: RowCounts | None = None
    """The row counts of a coalesced batch, in the rows' order; None for a single operation."""


@dataclass(slots=True, eq=False)
class Operation:
    """A validated write, or a coalesced batch of several.

    ``seq`` (that of the first one), ``epoch`` and ``segment`` are set when the log has it.
    """

    table: TableKey
    parts: tuple[Part, ...]
    rows: int
    nbytes: int
    schema_number: int
    """A number that stands for the schema of its rows: equal numbers, equal schemas."""
    spec_id: int
    """The partition spec by which the parts were split; the table may have another by now."""
    operations: int = 1
    """The number of writes, which is more than 1 in a coalesced batch; that has no origin."""
    origin: str | None = None
    origin_sequence: int | None = None
    checkpoint: Checkpoint | None = None
    messages: int = 0
    """The replication messages that it was made of."""
    entry: Entry | None = None
    seq: int = 0
    epoch: int = 0
    segment: int = 0
    admitted_bytes: int = 0
    """The bytes that it counts for in admission control until it is applied, or refused."""
    opens: tuple[PartitionKey, ...] = ()
    """The partitions that count as opened by it until it is applied, or refused."""
    duplicate: bool = False
    traces: tuple[WriteTrace, ...] = ()
    """The traces of its writes that are traced."""

    @property
    def last_seq(self) -> int:
        """The sequence of the last write."""
        return self.seq + self.operations - 1


@dataclass(slots=True, eq=False)
class Transaction:
    """Operations of different tables, in one record of the log; each has its own sequence."""

    operations: tuple[Operation, ...]
    entry: Entry | None
    changes: int = 0
    """The changes of rows that the operations were made of."""

    @property
    def last_seq(self) -> int:
        """The sequence of the last operation, once the log has it."""
        return self.operations[-1].last_seq


Answer = Callable[[Operation, BaseException | None], None]
"""A callback, called once per operation: with None when durable and visible, else the reason."""


class DmlSink(Protocol):
    """Takes operations in order, and never blocks.

    With an origin it is called on the event loop. Without one it is called in the thread that has
    prepared the operation: a reader's, the combiner's or the log's writer's.
    """

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Take an operation and answer it now or later.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
