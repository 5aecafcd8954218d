"""One operation: a batch of one table, split by partition, on its way from a stream to the buffers.

Law of this file: an operation is visible whole or not at all. Its identity for ever is
(ingester id, epoch, sequence), given by the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from persist.partitioning import PartitionValues

if TYPE_CHECKING:
    from ingester.buffer.table import TableBuffer
    from wal import Entry


class Part(NamedTuple):
    """The rows of an operation that belong to one partition."""

    values: PartitionValues
    batch: pa.RecordBatch
    nbytes: int


@dataclass(slots=True, eq=False)
class Operation:
    """A validated write; ``seq``, ``epoch`` and ``segment`` are set when the log has taken it."""

    table: TableBuffer
    parts: tuple[Part, ...]
    rows: int
    nbytes: int
    shape: int
    """Stands for the batches' schema: equal numbers, equal schemas."""
    origin: str | None = None
    origin_sequence: int | None = None
    checkpoint: tuple[str, bytes] | None = None
    entry: Entry | None = None
    seq: int = 0
    epoch: int = 0
    segment: int = 0
    admitted_bytes: int = 0
    """What it counts for until it is answered."""
    duplicate: bool = False
