"""One partition's share of an operation.

Law of this file: values only; what the log, the buffers and the write path all speak of.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from persist.partitioning import PartitionValues

Members = tuple[tuple[int, int], ...]
"""(number of the operation within its coalesced batch, its rows), ascending; one without rows is
left out."""


class Part(NamedTuple):
    """The rows of an operation that belong to one partition."""

    values: PartitionValues
    batch: pa.RecordBatch
    nbytes: int
    members: Members | None = None
    """Of a run: which of its operations the rows are of, in order; None where there is one."""
