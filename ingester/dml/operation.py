"""Operations and transactions.

An operation is one batch of one table, split by partition. Small batches of one schema that wait
for the log together form a *coalesced batch*: one log record, and one object of the class below,
for many operations with a sequence each. A transaction is several tables' operations in one
record.

An operation, and a transaction, is visible completely or not at all (tests/write,
tests/replication). Its permanent identity is (ingester id, epoch, sequence), assigned by the
log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ingester.origins.checkpoint_state import SourceCheckpoint
from persist.manifest import PartitionKey
from persist.manifest.actions import Content
from persist.partitioning import PartitionValues
from persist.table import TableKey
from wal import Entry, Route

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace


class OriginWrite(NamedTuple):
    """A write that has a sequence of its origin."""

    number: int
    """The write's number in a coalesced batch, or 0."""
    origin: str
    sequence: int
    content: Content | None
    """What the sequence contains; None if that is not noted."""


RowCounts = tuple[tuple[int, int], ...]
"""Rows of each operation in a coalesced batch, in order: (operation number in the batch, rows).
Operations without rows are omitted."""


class Part(NamedTuple):
    """An operation's rows in one partition."""

    values: PartitionValues
    batch: pa.RecordBatch
    nbytes: int
    row_counts: RowCounts | None = None
    """Only for a coalesced batch, in the order of the rows."""


@dataclass(slots=True, eq=False)
class Operation:
    """A validated write, or a coalesced batch of several.

    The log sets ``seq`` (of the first write), ``epoch``, ``segment`` and ``in_store``.
    """

    table: TableKey
    parts: tuple[Part, ...]
    rows: int
    nbytes: int
    schema_number: int
    """Equal numbers mean equal schemas."""
    spec_id: int
    """The partition spec of the parts; the table may have a newer one."""
    operations: int = 1
    """Number of writes; more than 1 in a coalesced batch, which names origins in ``writes``."""
    writes: tuple[OriginWrite, ...] = ()
    """The writes of a coalesced batch that have a sequence of an origin, by number."""
    origin: str | None = None
    origin_sequence: int | None = None
    content: Content | None = None
    """What the origin's sequence contains, also if some of it is in files already; None if that is
    not noted."""
    checkpoint: SourceCheckpoint | None = None
    messages: int = 0
    """Number of replication messages it was made of."""
    shares_memory: bool = False
    """Whether each part keeps the memory of others, or of other operations, alive."""
    entry: Entry | None = None
    seq: int = 0
    epoch: int = 0
    segment: int = 0
    in_store: bool = False
    """Whether a log object has it."""
    admitted_bytes: int = 0
    """Bytes counted by admission control until it is applied or refused."""
    opens: tuple[PartitionKey, ...] = ()
    """Partitions counted as open because of it until it is applied or refused."""
    duplicate: bool = False
    traces: tuple[WriteTrace, ...] = ()

    @property
    def numbered(self) -> tuple[OriginWrite, ...]:
        """The writes that have a sequence of an origin, by number."""
        if self.origin is None or self.origin_sequence is None:
            return self.writes
        return (OriginWrite(0, self.origin, self.origin_sequence, self.content),)

    @property
    def last_seq(self) -> int:
        """Sequence of the last write."""
        return self.seq + self.operations - 1


@dataclass(slots=True, eq=False)
class Transaction:
    """Operations of several tables in one log record, each with its own sequence."""

    operations: tuple[Operation, ...]
    entry: Entry | None
    changes: int = 0
    """Number of row changes it was made of."""
    routes: tuple[Route, ...] = ()
    """The routes of its tables."""
    at_store: bool = False
    """Whether it is acknowledged when the store has it."""

    @property
    def last_seq(self) -> int:
        """Sequence of the last operation, once the log has assigned it."""
        return self.operations[-1].last_seq
