"""The row groups of some files, one after another, while the next ones are being decoded.

Law of this file: it holds positions and no rows. Nothing is decoded ahead for a client that has not
come through three quarters of a row group: one that stands still has read no further, mostly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ingester.query.read_context import ReadContext
from persist.manifest import Add
from persist.parquet.reading import DataFile, group_bounds

AHEAD = 2
"""The row groups that are decoded ahead for a reader that has come through a whole one."""


class Visit(NamedTuple):
    """A row group that may have matching rows."""

    file: DataFile
    group: int
    start: int
    """The number in the file of its first row."""
    rows: int


class RowGroupScan:
    """Goes through files for one answer."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._left: Iterator[Visit] = iter(())
        self._next: deque[Visit] = deque()
        self._under_way = 0

    def visits(self, adds: Iterable[Add], folder: str | None = None) -> Iterator[Visit]:
        """Give the groups of all files whose bounds do not rule them out.

        Args:
            folder: that the files are in, where it is not the one of the snapshot's.
        """
        self._left, self._under_way = self._groups_of(adds, folder or self._context.folder), 0
        self._next.clear()
        while (visit := self._pull()) is not None:
            yield visit

    def decode_ahead(self, groups: int) -> None:
        """Have so many groups after the last one decoded, if that is not being done."""
        while self._under_way < groups:
            if self._under_way == len(self._next):
                visit = next(self._left, None)
                if visit is None:
                    return
                self._next.append(visit)
            visit = self._next[self._under_way]
            if not self._context.prefetch(visit.file, visit.group):
                return
            self._under_way += 1

    def _pull(self) -> Visit | None:
        if not self._next:
            return next(self._left, None)
        self._under_way = max(0, self._under_way - 1)
        return self._next.popleft()

    def _groups_of(self, adds: Iterable[Add], folder: str) -> Iterator[Visit]:
        context, predicate = self._context, self._context.selection.predicate
        pause = context.pace.let_others
        for add in adds:
            pause()
            if not predicate.may_match(add.stats, add.rows, pause):
                continue
            file = DataFile.of(add, folder)
            footer = context.groups.footer(file)
            stop = 0
            for index in range(footer.num_row_groups):
                rows = footer.row_group(index).num_rows
                start, stop = stop, stop + rows
                if not predicate.conjunctions or predicate.may_match(
                    group_bounds(footer, index, context.definition.schema), rows, pause
                ):
                    yield Visit(file, index, start, rows)
