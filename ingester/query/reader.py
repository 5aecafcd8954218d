"""The rows of a snapshot, one part after another, wherever they are: buffers, spills, files.

Law of this file: between two parts nothing is held but a position: no chunk, no row group, no list
of rows; in a keyed table what :mod:`ingester.query.merge_reader` holds, too. Runs in the gRPC
thread that asks for the next part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from ingester.buffer import BufferedRows, FileRows, Pin
from ingester.query.buffer_spill import OrderFile, RowSelection, RowsFile
from ingester.query.cpu_account import CpuAccount
from ingester.query.merge_reader import MergeReader
from ingester.query.parts import Piece
from ingester.query.read_context import AnswerPart, ReadContext, Selection
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.row_group_scan import AHEAD, RowGroupScan
from ingester.query.snapshot import PartitionView, Snapshot
from persist.manifest import Add, version_folder
from persist.table import TableKey


class PartReader:
    """Reads a selection of a snapshot. It must not refer to its stream, which is freed by count."""

    def __init__(
        self,
        snapshot: Snapshot,
        selection: Selection,
        row_groups: RowGroupCache,
        table: TableKey,
        account: CpuAccount | None = None,
    ) -> None:
        """``account``: by default one of the table's namespace, without a limit."""
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
        """The number of row groups that are worth decoding before they are asked for."""

    def parts(self) -> Generator[AnswerPart, None, None]:
        """Give all parts with at least one row, up to the limit."""
        for part in self._limited(self._all_parts()):
            yield part
            self._context.pace.restart()

    def let_go(self) -> None:
        """Let go of the last part: nobody wants it any more."""
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
        # A partition has at least one row and, where it says something of a column, no nulls in it.
        bounds, pace = view.bounds(definition), self._context.pace
        return self.selection.predicate.may_match(bounds, 1, pace.let_others)

    def _pin_parts(self, pin: Pin, name: str) -> Iterator[AnswerPart]:
        row = 0
        while row < pin.rows:
            source = pin.source()
            if isinstance(source, FileRows):
                yield from self._persisted_parts(source, range(row, pin.rows), name)
                return
            rows, piece = self._part_at(source, row, pin.rows)
            row += rows
            if piece.batch.num_rows:
                yield AnswerPart(self._context.marked(piece.batch), name, "buffer", piece.nbytes)
            else:
                self._context.pace.let_others()

    def _part_at(self, source: object, row: int, stop: int) -> tuple[int, Piece]:
        """Return (rows looked at, the matching ones) of the part that begins at a row."""
        if isinstance(source, RowsFile):
            spilled = self._context.spilled(source, row, stop)
            return self._slicer.whole_or_part(spilled, own=False)
        assert isinstance(source, BufferedRows)
        return self._slicer.buffered(source.chunks(), row, stop)

    def _persisted_parts(self, source: FileRows, unsent: range, name: str) -> Iterator[AnswerPart]:
        """Give the rows of a buffer that were not sent before it was released, from its files."""
        order = source.spill
        # The table may have been switched since the snapshot: then they are of the other version.
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
        """Do as :meth:`Slicer.part`, in a group whose first row is the file's row ``start``."""
        view = self._slicer.fitting(group, row, group.num_rows)
        with self.scheduler.given_back():
            numbers = selected.numbers(start + row, view.num_rows)
        found, own = selected.of(view, numbers)
        return view.num_rows, self._slicer.whole(found, own=own)
