"""One partition's share of an operation.

Law of this file: values only; what the log, the buffers and the write path all speak of.
"""

from __future__ import annotations

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
