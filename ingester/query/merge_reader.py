"""Reading keyed partitions: of files and buffers, only the newest row of each key.

    buffers ──▶ newest row of each key ──▶ spilled ─────────────────────────▶ sent
    files ────▶ rows whose keys no buffer has ──▶ sent           (first)

The row written last wins, and it may be a deletion. Buffers are newer than files, and the files of
a partition contain each key once. Between two parts only keys are in memory, besides what
:class:`~ingester.query.spill.ResultSpill` keeps there and the rows of a part that gets missing
columns. Everything runs in the gRPC thread that asks for the next part; Arrow's own threads are
not used, as they would take processors from other answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.buffer import BufferedRows, Pin
from ingester.query.parts import copied, cut, rows_at, sent_bytes, window
from ingester.query.read_context import AnswerPart, ReadContext
from ingester.query.snapshot import PartitionView, Replaced
from ingester.query.spill import RowsFile, SpilledResult
from ingester.schema.align import Aligner, align_table
from persist.manifest import Add
from persist.parquet.reading import DataFile
from persist.predicate.predicate import Predicate
from persist.table import DELETED, TableDefinition, schema_with_deletes

JOINED_BYTES = 16 << 20
"""Small batches are joined up to this size."""


class MergeOnRead:
    """Collects a partition's buffered rows and hides their keys in older rows."""

    def __init__(self, definition: TableDefinition, needed: tuple[str, ...]) -> None:
        """``needed``: columns of the answer and its filter; the key columns are added."""
        self._key = definition.primary_key
        self.columns = tuple(dict.fromkeys((*self._key, *needed)))
        self._rows = pa.schema(
            [
                definition.schema.field(name)
                for name in self.columns
                if name in definition.schema.names
            ]
        )
        self._schema = schema_with_deletes(self._rows)
        self._places = frozenset(self._schema.names)
        self._key_schema = definition.key_schema
        self._align_keys = Aligner(definition.key_schema)
        self._batches: list[pa.RecordBatch] = []
        self._newest: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the keys that hide older rows."""
        return 0 if self._newest is None else int(self._newest.nbytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add buffered rows, in log order."""
        self._batches.append(batch.select([n for n in batch.schema.names if n in self._places]))

    def newest(self) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Return the last row of each key, and the keys whose last row deletes.

        Rows keep the columns with which they were added.
        """
        batches, self._batches = _joined(self._batches), []
        keys = align_table([batch.select(list(self._key)) for batch in batches], self._key_schema)
        rows = pa.array(np.arange(keys.num_rows))
        numbered = keys.append_column("_row", rows)
        grouped = numbered.group_by(list(self._key), use_threads=False)
        last = grouped.aggregate([("_row", "max")])["_row_max"]
        is_last = np.zeros(keys.num_rows, np.bool_)
        is_last[last.to_numpy()] = True
        # Filtered, not taken by index: `take` would join columns, whose text may exceed one array.
        of_keys = keys.filter(pa.array(is_last))
        self._newest = pa.Table.from_batches(
            map(copied, of_keys.combine_chunks().to_batches()), of_keys.schema
        )
        there: list[pa.RecordBatch] = []
        deleted: list[pa.RecordBatch] = []
        start = 0
        for batch in batches:
            own = is_last[start : start + batch.num_rows]
            start += batch.num_rows
            gone = np.zeros(batch.num_rows, np.bool_)
            if DELETED in batch.schema.names:
                marks = pc.fill_null(batch[DELETED], False)
                gone = marks.to_numpy(zero_copy_only=False)
                deleted.append(batch.select(list(self._key)).filter(pa.array(own & gone)))
                batch = batch.drop_columns([DELETED])
            there.append(batch.filter(pa.array(own & ~gone)))
        return _joined(there), _joined(deleted)

    def without_newer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a file whose keys are not buffered."""
        if self._newest is None or self._newest.num_rows == 0:
            return batch
        return self.without(batch, self._newest)

    def without(self, batch: pa.RecordBatch, keys: pa.Table) -> pa.RecordBatch:
        """Return the rows whose keys are not among these."""
        rows = pa.array(np.arange(batch.num_rows))
        own = pa.table(
            [*self._align_keys(batch.select(list(self._key))).columns, rows],
            names=[*self._key, "_row"],
        )
        joined = own.join(keys, keys=list(self._key), join_type="left anti", use_threads=False)
        kept = joined["_row"]
        return batch.take(kept.combine_chunks().sort())


class TailDeletes:
    """Builds the deletions of a buffered tail: keys that a reader removes from older rows.

    The older rows of a filtered reader match its filter, so a key whose newest row no longer
    matches is deleted, too.
    """

    def __init__(
        self, definition: TableDefinition, answer: pa.Schema, predicate: Predicate
    ) -> None:
        self._key = definition.primary_key
        self._align = Aligner(answer)
        self._mark = answer.names[-1]
        self._predicate = predicate
        self._looked_at = Aligner(
            pa.schema([definition.schema.field(c) for c in predicate.columns])
        )
        self._by_key_alone = set(predicate.columns) <= set(self._key)

    def of_keys(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys to delete; other columns do not matter."""
        keys = keys.select(list(self._key))
        return self._predicate.select(keys) if self._by_key_alone else keys

    def of_misses(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of the rows that do not match."""
        if self._by_key_alone:
            return rows.select(list(self._key)).slice(0, 0)
        mask = self._predicate.mask(self._looked_at(rows))
        keys = rows.select(list(self._key))
        return keys.slice(0, 0) if mask is None else keys.filter(pc.invert(mask))

    def deletes(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the answer that delete these keys."""
        marks = pa.repeat(pa.scalar("delete"), keys.num_rows)
        return self._align(keys.append_column(self._mark, marks))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join small batches of one schema, up to about :data:`JOINED_BYTES`."""
    found: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        if small and (nbytes >= JOINED_BYTES or not batch.schema.equals(small[0].schema)):
            found += pa.Table.from_batches(small).combine_chunks().to_batches()
            small, nbytes = [], 0
        small.append(batch)
        nbytes += batch.nbytes
    if small:
        found += pa.Table.from_batches(small).combine_chunks().to_batches()
    return found


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
        """Yield all parts of a partition; in a tail also the deletions."""
        merge = MergeOnRead(self._context.definition, self._context.columns)
        for pin in view.pins:
            self._add_rows(pin, merge)
        yield from self._merged(merge, view.files, view.replaced, name)

    def changes(self, batches: Iterable[pa.RecordBatch], name: str) -> Iterator[AnswerPart]:
        """Yield all parts of the changes that a partition's buffered rows make, in log order."""
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
            # Before the turn is taken back, because that raises if the client has disconnected.
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
        """Add a buffer's rows to the merge, in log order."""
        row = 0
        while row < pin.rows:
            batch = self._rows_at(pin.source(), row, pin.rows)
            merge.add(batch)
            row += batch.num_rows
            del batch  # a slice keeps its whole buffer alive
            self._context.pace.let_others()

    def _rows_at(self, source: object, row: int, stop: int) -> pa.RecordBatch:
        """Return the rows ``row..stop-1`` as far as they are contiguous."""
        if isinstance(source, RowsFile):
            return self._context.spilled(source, row, stop)
        assert isinstance(source, BufferedRows)
        return rows_at(source.chunks(), row, stop)

    def _surviving(
        self, given: list[pa.RecordBatch], name: str, source: str
    ) -> Iterator[AnswerPart]:
        """Yield the parts of rows that are the newest of their keys; in a tail also their
        deletions.

        Args:
            given: a list of one batch, which is popped so that it is not held while a part is sent.
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
        """Yield the parts of matching rows with missing columns."""
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
        """Yield the deletions of a version's keys that are in no current file or buffer."""
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
        """Yield the rows of files in pieces of at most one part."""
        context = self._context
        for add in adds:
            file = DataFile.of(add, context.folder)
            footer = context.groups.footer(file)
            for index in range(footer.num_row_groups):
                row, rows = 0, footer.row_group(index).num_rows
                while row < rows:
                    group = context.group(file, index, columns).batch
                    # Not assigned to a name, which would keep the whole row group until the next
                    # one.
                    piece = [window(group, row, rows).batch]
                    row += piece[0].num_rows
                    del group
                    if row == rows:
                        context.group_read(file, index, columns)
                    yield piece.pop()
