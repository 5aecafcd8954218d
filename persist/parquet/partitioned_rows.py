"""Rows on their way into files, held by partition until there are enough for one.

Law of this file: what is held counts by its size in memory. Which partition's rows go into a file
next, and when, is the caller's to say. One thread at a time.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import PartitionValues

SplitRows = list[tuple[PartitionValues, pa.RecordBatch]]
"""Rows of one batch by partition, as ``persist.partitioning.split_batch`` makes them."""


class PartitionedRows:
    """Holds rows of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._held: defaultdict[PartitionValues, list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: dict[PartitionValues, int] = {}
        self.nbytes = 0
        """The bytes of all rows that are held."""

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, values: PartitionValues, rows: pa.RecordBatch, *, whole: bool = True) -> int:
        """Hold rows of a partition, and tell how many bytes it has now.

        Args:
            whole: Whether they are all of a batch. Parts are views of one: they are copied, as one
                that is held would hold all of it.
        """
        if not whole:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        nbytes = int(rows.nbytes)
        self._held[values].append(rows)
        self._sizes[values] = size = self._sizes.get(values, 0) + nbytes
        self.nbytes += nbytes
        return size

    def largest(self) -> PartitionValues:
        """The partition that has the most bytes. ``ValueError`` where nothing is held."""
        return max(self._sizes, key=self._sizes.__getitem__)

    def partitions(self) -> list[PartitionValues]:
        """The partitions that rows are held of."""
        return list(self._sizes)

    def take(self, values: PartitionValues) -> SparseRows:
        """The rows of a partition, which are not held any more."""
        self.nbytes -= self._sizes.pop(values)
        return SparseRows.of(self._held.pop(values), self._schema)
