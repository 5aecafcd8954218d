"""The parts of a keyed partition: of files and buffers, only the rows that are the newest of a key.

    buffers ──▶ newest row of each key ──▶ spilled ─────────────────────────▶ sent
    files ────▶ rows whose keys no buffer has ──▶ sent           (first)

Law of this file: between two parts there are keys in memory, and no rows but those that
``result_spill`` leaves there, and those of a part that columns are added to. Runs in the gRPC
thread that asks for the next part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

import pyarrow as pa

from ingester.buffer import BufferedRows, Pin
from ingester.query.buffer_spill import RowsFile
from ingester.query.merge_on_read import MergeOnRead, TailDeletes
from ingester.query.parts import copied, cut, rows_at, sent_bytes, window
from ingester.query.read_context import AnswerPart, ReadContext
from ingester.query.result_spill import SpilledResult
from ingester.query.snapshot import PartitionView, Replaced
from ingester.schema.align import align_table
from persist.manifest import Add
from persist.parquet.reading import DataFile


class MergeReader:
    """Reads the keyed partitions of one answer."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._slicer = context.slicer
        self._spill = context.groups.result_spill
        selection = context.selection
        self._tail_deletes = (
            TailDeletes(context.definition, selection.schema, selection.predicate)
            if selection.marks_operations
            else None
        )

    def parts(self, view: PartitionView, name: str) -> Iterator[AnswerPart]:
        """Give all parts of a partition, and in a tail the deletes."""
        merge = MergeOnRead(self._context.definition, self._context.columns)
        for pin in view.pins:
            self._add_rows(pin, merge)
        yield from self._merged(merge, view.files, view.replaced, name)

    def changes(self, batches: Iterable[pa.RecordBatch], name: str) -> Iterator[AnswerPart]:
        """Give all parts of a partition's buffered rows, in log order: what they change."""
        merge = MergeOnRead(self._context.definition, self._context.columns)
        for batch in batches:
            merge.add(batch)
            del batch
            self._context.pace.let_others()
        yield from self._merged(merge, (), None, name)

    def _merged(
        self,
        merge: MergeOnRead,
        files: Sequence[Add],
        replaced: Replaced | None,
        name: str,
    ) -> Iterator[AnswerPart]:
        context, tail_deletes = self._context, self._tail_deletes
        scheduler, account = context.scheduler, context.account
        with scheduler.given_back(), scheduler.aside(account):
            newest, deleted = merge.newest()
        if tail_deletes is None:
            newest, deleted = [self._slicer.matching(batch) for batch in newest], []
        with ExitStack() as held:
            # Before the turn comes back: that ends an answer that nobody waits for.
            with scheduler.given_back():
                waiting = held.enter_context(closing(SpilledResult(self._spill, newest)))
                del newest
            nbytes = merge.nbytes + sum(batch.nbytes for batch in deleted)
            held.enter_context(self._spill.held(nbytes))
            for piece in self._pieces(files, merge.columns):
                parts = self._surviving([merge.without_newer(piece)], name, "file")
                del piece
                yield from parts
            for piece in waiting.parts(context.scheduler.given_back):
                parts = self._surviving([piece], name, "buffer")
                del piece
                yield from parts
            if tail_deletes is not None:
                for batch in deleted:
                    yield from self._deletes(
                        tail_deletes, tail_deletes.of_keys(batch), name, "buffer"
                    )
                if replaced is not None:
                    yield from self._deleted_since(replaced, merge, tail_deletes, name)

    def _add_rows(self, pin: Pin, merge: MergeOnRead) -> None:
        """Put a buffer's rows into the merge, in log order."""
        row = 0
        while row < pin.rows:
            batch = self._rows_at(pin.source(), row, pin.rows)
            merge.add(batch)
            row += batch.num_rows
            del batch  # a slice holds all of its buffer
            self._context.pace.let_others()

    def _rows_at(self, source: object, row: int, stop: int) -> pa.RecordBatch:
        """Return the rows from ``row`` on, before ``stop``, that lie together."""
        if isinstance(source, RowsFile):
            return self._context.spilled(source, row, stop)
        assert isinstance(source, BufferedRows)
        return rows_at(source.chunks(), row, stop)

    def _surviving(
        self, given: list[pa.RecordBatch], name: str, source: str
    ) -> Iterator[AnswerPart]:
        """Give the parts of rows that are the newest of their keys, and in a tail their deletes.

        Args:
            given: one batch, which is taken out: it is not held while the client has a part.
        """
        rows = given.pop()
        tail_deletes = self._tail_deletes
        missed = None if tail_deletes is None else tail_deletes.of_misses(rows)
        if rows.num_rows and self._slicer.lacks(rows):
            yield from self._widened(rows, name, source)
        else:
            piece = self._slicer.whole(rows, own=False)
            del rows
            if piece.batch.num_rows:
                yield AnswerPart(self._context.marked(piece.batch), name, source, piece.nbytes)
            else:
                self._context.pace.let_others()
            del piece
        if tail_deletes is not None and missed is not None:
            yield from self._deletes(tail_deletes, missed, name, source)

    def _widened(self, rows: pa.RecordBatch, name: str, source: str) -> Iterator[AnswerPart]:
        """Give the parts of matching rows that lack columns of the answer."""
        found, row = copied(self._slicer.matching(rows)), 0
        del rows
        with self._spill.held(found.nbytes):
            while row < found.num_rows:
                view = self._slicer.fitting(found, row, found.num_rows)
                row += view.num_rows
                piece = self._slicer.whole(view, own=True)
                yield AnswerPart(self._context.marked(piece.batch), name, source, piece.nbytes)
                del piece
        self._context.pace.let_others()

    def _deleted_since(
        self, replaced: Replaced, merge: MergeOnRead, tail_deletes: TailDeletes, name: str
    ) -> Iterator[AnswerPart]:
        """Give the deletes of a version's keys that neither today's files nor buffers have."""
        definition = self._context.definition
        key = definition.primary_key
        there = align_table(list(self._pieces(replaced.added, key)), definition.key_schema)
        with self._spill.held(there.nbytes):
            for piece in self._pieces(replaced.removed, key):
                gone = merge.without(merge.without_newer(piece), there)
                del piece
                yield from self._deletes(tail_deletes, tail_deletes.of_keys(gone), name, "file")

    def _deletes(
        self, tail_deletes: TailDeletes, keys: pa.RecordBatch, name: str, source: str
    ) -> Iterator[AnswerPart]:
        row = 0
        while row < keys.num_rows:
            some = self._slicer.fitting(keys, row, keys.num_rows)
            row += some.num_rows
            for part in cut(tail_deletes.deletes(some)):
                yield AnswerPart(copied(part), name, source, sent_bytes(part))

    def _pieces(self, adds: Sequence[Add], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Give the rows of files, each time as many as make a part."""
        context = self._context
        for add in adds:
            file = DataFile.of(add, context.folder)
            footer = context.groups.footer(file)
            for index in range(footer.num_row_groups):
                row, rows = 0, footer.row_group(index).num_rows
                while row < rows:
                    group = context.group(file, index, columns).batch
                    # Not by a name: the whole group would be held until the next one is needed.
                    piece = [window(group, row, rows).batch]
                    row += piece[0].num_rows
                    del group
                    if row == rows:
                        context.group_read(file, index, columns)
                    yield piece.pop()
