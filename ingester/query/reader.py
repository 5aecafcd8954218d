"""Reading a snapshot's rows part by part from buffers, spills and files.

Between two parts a reader holds a position only: no chunk, no row group, no list of rows; for
keyed tables see :mod:`ingester.query.merge_reader`. Runs in the gRPC thread that asks for the
next part. The next row groups are decoded ahead for a client that has read three quarters of
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import BufferedRows, FlushedRows, Pin
from ingester.query.fair_scheduler import CpuAccount
from ingester.query.merge_reader import MergeReader
from ingester.query.parts import Piece
from ingester.query.read_context import AnswerPart, ReadContext, Selection
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import PartitionView, Snapshot
from ingester.query.spill import OrderFile, RowSelection, RowsFile
from persist.manifest import Add, version_folder
from persist.parquet.reading import DataFile, group_bounds
from persist.table import TableKey

AHEAD = 2
"""Row groups decoded ahead for a client that has read a whole one."""


class Visit(NamedTuple):
    """A row group that may contain matching rows."""

    file: DataFile
    group: int
    start: int
    """Row number of its first row in the file."""
    rows: int


class RowGroupScan:
    """Iterates over the row groups of files for one answer."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._left: Iterator[Visit] = iter(())
        self._next: deque[Visit] = deque()
        self._under_way = 0

    def visits(self, adds: Iterable[Add], folder: str | None = None) -> Iterator[Visit]:
        """Yield the row groups of all files that may contain matching rows.

        Args:
            folder: the files' folder; by default that of the snapshot's table.
        """
        self._left, self._under_way = self._groups_of(adds, folder or self._context.folder), 0
        self._next.clear()
        while (visit := self._pull()) is not None:
            yield visit

    def decode_ahead(self, groups: int) -> None:
        """Decode up to this many groups ahead."""
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


class PartReader:
    """Reads a selection of a snapshot. Must not refer to its stream, which is freed by reference
    count.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        selection: Selection,
        row_groups: RowGroupCache,
        table: TableKey,
        account: CpuAccount | None = None,
    ) -> None:
        """``account``: by default one of the table's namespace without a limit."""
        self.selection = selection
        self.snapshot = snapshot
        self.scheduler = row_groups.scheduler
        self.account = account or CpuAccount(table[0])
        self._table = table
        folder = version_folder(*table, snapshot.table_version)
        self._context = ReadContext(
            snapshot.definition, selection, row_groups, folder, self.account
        )
        self._slicer = self._context.slicer
        self._scan = RowGroupScan(self._context)
        self._ahead = 0
        """Number of row groups to decode ahead."""

    def parts(self) -> Generator[AnswerPart, None, None]:
        """Yield all parts with at least one row, up to the limit."""
        for part in self._limited(self._all_parts()):
            yield part
            self._context.pace.restart()

    def let_go(self) -> None:
        """Release the last part."""
        self._slicer.let_go()

    def _limited(self, parts: Iterator[AnswerPart]) -> Iterator[AnswerPart]:
        left = self.selection.limit
        if left is None:
            yield from parts
            return
        while left:
            part = next(parts, None)
            if part is None:
                return
            batch = part.batch if part.batch.num_rows <= left else part.batch.slice(0, left)
            left -= batch.num_rows
            yield part._replace(batch=batch)

    def _all_parts(self) -> Iterator[AnswerPart]:
        definition = self.snapshot.definition
        merged = MergeReader(self._context) if definition.keyed else None
        for view in self.snapshot.partitions():
            if self._may_match(view):
                name = view.name(definition)
                if merged is not None:
                    yield from merged.parts(view, name)
                else:
                    yield from self._file_parts(view.files, name)
                    for pin in view.pins:
                        yield from self._pin_parts(pin, name)
            for pin in view.pins:
                pin.close()

    def _may_match(self, view: PartitionView) -> bool:
        definition = self.snapshot.definition
        spec = definition.spec_of(view.spec_id)
        if set(spec.columns).isdisjoint(self.selection.predicate.columns):
            return True
        # A partition has at least one row, and no nulls in the columns that its values describe.
        bounds, pace = view.bounds(definition), self._context.pace
        return self.selection.predicate.may_match(bounds, 1, pace.let_others)

    def _pin_parts(self, pin: Pin, name: str) -> Iterator[AnswerPart]:
        row = 0
        while row < pin.rows:
            source = pin.source()
            if isinstance(source, FlushedRows):
                yield from self._persisted_parts(source, range(row, pin.rows), name)
                return
            rows, piece = self._part_at(source, row, pin.rows)
            row += rows
            if piece.batch.num_rows:
                yield AnswerPart(self._context.marked(piece.batch), name, "buffer", piece.nbytes)
            else:
                self._context.pace.let_others()

    def _part_at(self, source: object, row: int, stop: int) -> tuple[int, Piece]:
        """Filter rows from ``row``; return (number of rows consumed, matching rows)."""
        if isinstance(source, RowsFile):
            spilled = self._context.spilled(source, row, stop)
            return self._slicer.whole_or_part(spilled, own=False)
        assert isinstance(source, BufferedRows)
        return self._slicer.buffered(source.chunks(), row, stop)

    def _persisted_parts(
        self, source: FlushedRows, unsent: range, name: str
    ) -> Iterator[AnswerPart]:
        """Yield those rows of a released buffer that were not sent yet, from its files."""
        order = source.spill
        # After a table switch since the snapshot, the files are in the other version's folder.
        folder = version_folder(*self._table, source.table_version)
        assert order is None or isinstance(order, OrderFile)
        first = 0
        for add in source.adds:
            if len(unsent) == source.total_rows:
                yield from self._file_parts((add,), name, folder=folder)
            else:
                selected = RowSelection(order, first, unsent)
                yield from self._file_parts((add,), name, selected, folder)
            first += add.rows

    def _file_parts(
        self,
        adds: Sequence[Add],
        name: str,
        selected: RowSelection | None = None,
        folder: str | None = None,
    ) -> Iterator[AnswerPart]:
        context = self._context
        for visit in self._scan.visits(adds, folder):
            row = 0
            while row < visit.rows:
                if self._ahead and self.selection.limit is None:
                    self._scan.decode_ahead(self._ahead)
                group = context.group(visit.file, visit.group)
                if selected is None:
                    looked_at, piece = self._slicer.part(group.batch, row, visit.rows, group.nbytes)
                else:
                    looked_at, piece = self._selected_part(selected, group.batch, row, visit.start)
                row += looked_at
                del group
                if row == visit.rows:
                    context.group_read(visit.file, visit.group)
                if piece.batch.num_rows:
                    yield AnswerPart(context.marked(piece.batch), name, "file", piece.nbytes)
                else:
                    context.pace.let_others()
                if 4 * row >= 3 * visit.rows:
                    self._ahead = AHEAD if row == visit.rows else max(self._ahead, 1)

    def _selected_part(
        self, selected: RowSelection, group: pa.RecordBatch, row: int, start: int
    ) -> tuple[int, Piece]:
        """As :meth:`Slicer.part`, for a row group whose first row is the file's row ``start``."""
        view = self._slicer.fitting(group, row, group.num_rows)
        with self.scheduler.given_back():
            numbers = selected.numbers(start + row, view.num_rows)
        found, own = selected.of(view, numbers)
        return view.num_rows, self._slicer.whole(found, own=own)
