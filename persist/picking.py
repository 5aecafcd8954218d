"""Rows of a table by number, a stretch at a time, without a second copy of the table.

Law of this file: a table comes in chunks and stays in them. What is picked is taken chunk by chunk
in the order in which it lies there, then put into the order that was asked for; only where chunks
are so small that this would cost more than a copy, a column is joined once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.uint32]

MIN_ROWS_A_CHUNK = 256
"""Taking fewer rows at a time costs more than joining the chunks first."""

MAX_JOINED_BYTES = 1 << 30
"""Texts of one array have less than 2 GiB together."""


class RowPicker:
    """A table, some of whose columns are given in another form."""

    def __init__(self, table: pa.Table, instead: dict[str, pa.Array]) -> None:
        self.rows: int = table.num_rows
        self._most = 0
        self._columns = {
            name: pa.chunked_array([instead[name]]) if name in instead else table.column(name)
            for name in table.column_names
        }

    def stretch(self, start: int, stop: int) -> pa.Table:
        """The rows from ``start`` up to ``stop``, as they lie."""
        return pa.table(
            {name: column.slice(start, stop - start) for name, column in self._columns.items()}
        )

    def pick(self, numbers: Numbers) -> pa.Table:
        """The rows of these numbers, in this order."""
        # Number and place in one integer: sorting these is several times faster than argsort.
        both = (numbers.astype(np.uint64) << np.uint64(32)) | np.arange(
            len(numbers), dtype=np.uint64
        )
        both.sort()
        ascending = (both >> np.uint64(32)).astype(np.uint32)
        places = np.empty(len(numbers), dtype=np.uint32)
        places[both.astype(np.uint32)] = np.arange(len(numbers), dtype=np.uint32)
        # By the largest pick so far: the short last one of a file is not worth a copy of the table.
        self._most = max(self._most, len(numbers))
        picked = {}
        for name in self._columns:
            column = self._joined_if_small(name)
            if column.num_chunks == 1:
                picked[name] = column.chunk(0).take(pa.array(numbers))
            else:
                picked[name] = taken(column, ascending).take(pa.array(places))
        return pa.table(picked)

    def _joined_if_small(self, name: str) -> pa.ChunkedArray:
        column = self._columns[name]
        small = self._most < column.num_chunks * MIN_ROWS_A_CHUNK
        if column.num_chunks > 1 and small and column.nbytes < MAX_JOINED_BYTES:
            column = self._columns[name] = pa.chunked_array([pa.concat_arrays(column.chunks)])
        return column


def taken(column: pa.ChunkedArray, ascending: Numbers) -> pa.Array:
    """The values of these rows, whose numbers rise; Arrow's own would join all chunks first."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    cuts = np.searchsorted(ascending, ends).tolist()
    pieces = []
    first, begin = 0, 0
    for chunk, end, cut in zip(column.chunks, ends.tolist(), cuts, strict=True):
        if cut > first:
            pieces.append(chunk.take(pa.array(ascending[first:cut] - np.uint32(begin))))
        first, begin = cut, end
    return pa.concat_arrays(pieces)
