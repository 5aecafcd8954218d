"""Which rows of a file a reader still needs, when its buffer was released in the middle of it.

Law of this file: a row of the file is wanted exactly where its number in the buffer is in the
reader's range, whatever order the rows have in the file.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingester.query.spill import OrderFile


class WantedRows:
    """The rows ``wanted`` of a buffer, in one of its files."""

    def __init__(self, order: OrderFile | None, first: int, wanted: range) -> None:
        """``first``: the file's first row among those of all the buffer's files."""
        self._order = order
        self._first = first
        self._wanted = wanted

    def of(self, view: pa.RecordBatch, row: int) -> tuple[pa.RecordBatch, bool]:
        """The wanted ones of the rows from the file's ``row`` on, and whether they were copied."""
        begin = self._first + row
        if self._order is None:
            found = range(
                max(begin, self._wanted.start), min(begin + view.num_rows, self._wanted.stop)
            )
            return view.slice(max(0, found.start - begin), len(found)), False
        numbers = self._order.at(begin, view.num_rows)
        mask = (numbers >= self._wanted.start) & (numbers < self._wanted.stop)
        if mask.all():
            return view, False
        return view.filter(pa.array(np.asarray(mask))), True
