"""Which rows of a file a reader still needs, when its buffer was released in the middle of it.

Law of this file: a row of the file is wanted exactly where its number in the buffer is in the
reader's range, whatever order the rows have in the file.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingester.buffer.handle import Arrivals
from ingester.query.buffer_spill import OrderFile


class WantedRows:
    """The rows ``wanted`` of a buffer, in one of its files."""

    def __init__(self, order: OrderFile | None, first: int, wanted: range) -> None:
        """``first``: the file's first row among those of all the buffer's files."""
        self._order = order
        self._first = first
        self._wanted = wanted

    def numbers(self, row: int, rows: int) -> Arrivals:
        """The numbers of ``rows`` rows of the file, from its ``row`` on. Reads the disk."""
        begin = self._first + row
        if self._order is None:
            return np.arange(begin, begin + rows, dtype=np.uint32)
        return self._order.at(begin, rows)

    def of(self, view: pa.RecordBatch, numbers: Arrivals) -> tuple[pa.RecordBatch, bool]:
        """The wanted ones of the rows with these numbers, and whether they were copied."""
        mask = (numbers >= self._wanted.start) & (numbers < self._wanted.stop)
        if mask.all():
            return view, False
        return view.filter(pa.array(mask)), True
