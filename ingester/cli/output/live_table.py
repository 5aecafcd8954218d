"""A table for people that has no end: rows are printed as they come.

Law of this file: a column is as wide as its widest cell so far, up to :data:`WIDEST`; nothing is
cut, a longer cell moves the rest of its row. The heading comes again with other columns, and where
it has left the screen.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ingester.shown_text import escaped

from .formats import table_cells

WIDEST = 40
"""The characters that a column is aligned to at most."""
HEADING_EVERY = 50
"""The rows after which the heading comes again."""


class LiveTable:
    """Prints batches, whose columns may change.

    Args:
        say: prints a line.
        repeats: whether the heading comes again after :data:`HEADING_EVERY` rows.
    """

    def __init__(self, say: Callable[[str], object], repeats: bool) -> None:
        self._say = say
        self._repeats = repeats
        self._names: list[str] = []
        self._widths: list[int] = []
        self._since_heading = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows."""
        names = list(map(escaped, batch.schema.names))
        columns = [
            [escaped(str(cell)) for cell in table_cells(name, column)]
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        if names != self._names:
            self._names, self._widths = names, [len(name) for name in names]
            self._since_heading = 0
        for at, cells in enumerate(columns):
            widest = max((len(cell) for cell in cells), default=0)
            self._widths[at] = max(self._widths[at], min(widest, WIDEST))
        for row in zip(*columns, strict=True):
            if self._since_heading == 0:
                self._say(self._line(self._names))
            self._say(self._line(row))
            self._since_heading += 1
            if self._repeats and self._since_heading >= HEADING_EVERY:
                self._since_heading = 0

    def _line(self, cells: tuple[str, ...] | list[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()
