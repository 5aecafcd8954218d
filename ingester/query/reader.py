"""The rows of a snapshot, one part after another, wherever they are: buffers, spills, files.

Law of this file: between two parts nothing is held but a position: no chunk, no row group, no list
of rows; in a keyed table the keys of a partition's buffers, too. Runs in the gRPC thread that asks
for the next part.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import BufferedRows, FileRows, Pin
from ingester.query.buffer_spill import OrderFile, RowsFile
from ingester.query.merge_on_read import MergeOnRead, TailDeletes
from ingester.query.parts import Piece, copied, cut, sent_bytes, small_run, window
from ingester.query.result_spill import RowsAside
from ingester.query.row_group_cache import RowGroups
from ingester.query.row_group_scan import AHEAD, FileWalk
from ingester.query.row_selection import WantedRows
from ingester.query.slicer import Cutter
from ingester.query.snapshot import PartitionView, Replaced, Snapshot
from ingester.schema.align import align_table
from persist.manifest import Add
from persist.parquet.footer import DataFile
from persist.predicate.predicate import Predicate

TURN_S = 0.01
"""How long an answer is worked on before others have a turn, where no part comes of it."""


OPERATION = "_op"


class Part(NamedTuple):
    """What is sent at once: rows of one partition, and where they came from."""

    batch: pa.RecordBatch
    partition: str
    source: str
    """``buffer`` or ``file``."""
    nbytes: int


class Selection(NamedTuple):
    """Which rows and columns of a snapshot are wanted."""

    schema: pa.Schema
    """The answer's columns, without metadata."""
    predicate: Predicate
    limit: int | None
    marks_operations: bool = False
    """Whether the answer has ``_op``: the buffered tail of a keyed table."""


class PartReader:
    """Reads a selection of a snapshot. It must not refer to its stream, which is freed by count."""

    def __init__(
        self, snapshot: Snapshot, selection: Selection, row_groups: RowGroups, folder: str
    ) -> None:
        self.selection = selection
        self.snapshot = snapshot
        self._groups = row_groups
        self.turns = row_groups.turns
        self._folder = folder
        self._working_since = time.monotonic()
        self._ahead = 0
        """Row groups worth decoding before they are asked for."""
        table = snapshot.definition.schema
        self._cutter = Cutter(
            pa.schema([field for field in selection.schema if field.name != OPERATION]),
            pa.schema([table.field(name) for name in selection.predicate.columns]),
            selection.predicate,
            row_groups.views,
        )
        self._needed = tuple(dict.fromkeys((*selection.schema.names, *selection.predicate.columns)))
        self._files = FileWalk(
            row_groups, folder, table, selection.predicate, self._needed, id(self)
        )

    def parts(self) -> Generator[Part, None, None]:
        """All parts with at least one row, up to the limit."""
        for part in self._limited(self._all_parts()):
            yield part
            self._working_since = time.monotonic()

    def let_go(self) -> None:
        """Nobody wants the last part any more."""
        self._cutter.let_go()

    def _limited(self, parts: Iterator[Part]) -> Iterator[Part]:
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

    def _all_parts(self) -> Iterator[Part]:
        definition = self.snapshot.definition
        for view in self.snapshot.partitions():
            if self._may_match(view):
                name = view.name(definition)
                if definition.keyed:
                    yield from self._keyed_parts(view, name)
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
        return self.selection.predicate.may_match(view.bounds(definition), 1)

    def _pin_parts(self, pin: Pin, name: str) -> Iterator[Part]:
        row = 0
        while row < pin.rows:
            source = pin.source()
            if isinstance(source, FileRows):
                yield from self._persisted_parts(source, range(row, pin.rows), name)
                return
            rows, part = self._part_at(source, row, pin.rows)
            row += rows
            if part.batch.num_rows:
                yield Part(self._marked(part.batch), name, "buffer", part.nbytes)
            else:
                self._let_others()

    def _part_at(self, source: object, row: int, stop: int) -> tuple[int, Piece]:
        """(rows looked at, the matching ones) of the part that begins at a row."""
        if isinstance(source, RowsFile):
            start, batch = self._spilled_at(source, row)
            view = batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start))
            return self._whole_or_part(view, own=False)
        assert isinstance(source, BufferedRows)
        chunks = source.chunks()
        index = bisect_right(chunks, row, key=lambda chunk: chunk.start) - 1
        chunk = chunks[index]
        if row == chunk.start and (run := small_run(chunks[index:], stop)) is not None:
            return self._whole_or_part(run, own=True)
        stop = min(chunk.batch.num_rows, stop - chunk.start)
        return self._cutter.part(chunk.batch, row - chunk.start, stop, chunk.nbytes)

    def _whole_or_part(self, batch: pa.RecordBatch, *, own: bool) -> tuple[int, Piece]:
        """As :meth:`_part_at`, of what makes at most a part, but for columns that it may lack."""
        if self._cutter.lacks(batch):
            return self._cutter.part(batch, 0, batch.num_rows)
        return batch.num_rows, self._cutter.whole(batch, own=own)

    def _persisted_parts(self, source: FileRows, wanted: range, name: str) -> Iterator[Part]:
        """The wanted rows of a buffer that were not sent before it was released."""
        order = source.spill
        assert order is None or isinstance(order, OrderFile)
        first = 0
        for add in source.adds:
            if len(wanted) == source.total_rows:
                yield from self._file_parts((add,), name)
            else:
                yield from self._file_parts((add,), name, WantedRows(order, first, wanted))
            first += add.rows

    def _file_parts(
        self, adds: Sequence[Add], name: str, wanted: WantedRows | None = None
    ) -> Iterator[Part]:
        for visit in self._files.visits(adds):
            row = 0
            while row < visit.rows:
                if self._ahead and self.selection.limit is None:
                    self._files.decode_ahead(self._ahead)
                # Asked for again for each part: between two parts only the cache may hold it.
                group = self._groups.group(visit.file, visit.group, self._needed, id(self))
                if wanted is None:
                    looked_at, part = self._cutter.part(group.batch, row, visit.rows, group.nbytes)
                else:
                    looked_at, part = self._wanted_part(wanted, group.batch, row, visit.start)
                row += looked_at
                del group
                if row == visit.rows:
                    self._groups.done(visit.file.path, visit.group, self._needed, id(self))
                if part.batch.num_rows:
                    yield Part(self._marked(part.batch), name, "file", part.nbytes)
                else:
                    self._let_others()
                if 4 * row >= 3 * visit.rows:
                    self._ahead = AHEAD if row == visit.rows else max(self._ahead, 1)

    def _keyed_parts(self, view: PartitionView, name: str) -> Iterator[Part]:
        merge = MergeOnRead(self.snapshot.definition, self._needed)
        for pin in view.pins:
            row = 0
            while row < pin.rows:
                start, rows, batch = self._rows_at(pin.source(), row, pin.rows)
                merge.add(batch)
                del batch  # a slice holds all of its buffer
                row = start + rows
                self._let_others()
        aside, takings = self._groups.result_spill, self._takings()
        with self.turns.given_back():  # one long computation, outside the interpreter
            newest, deleted = merge.newest()
            if takings is None:
                newest, deleted = [self._cutter.matching(batch) for batch in newest], []
            # Between two parts there are keys in memory, and no rows.
            waiting = RowsAside(aside, newest)
            del newest
        held = merge.nbytes + sum(batch.nbytes for batch in deleted)
        with closing(waiting), aside.held(held):
            for piece in self._pieces(view.files, merge.columns):
                parts = self._older_or_newer([merge.without_newer(piece)], takings, name, "file")
                del piece
                yield from parts
            for piece in waiting.parts(self.turns.given_back):
                parts = self._older_or_newer([piece], takings, name, "buffer")
                del piece
                yield from parts
            if takings is not None:
                for batch in deleted:
                    yield from self._taken(takings, takings.of_keys(batch), name, "buffer")
                if view.replaced is not None:
                    yield from self._gone_since(view.replaced, merge, takings, name)

    def _older_or_newer(
        self, given: list[pa.RecordBatch], takings: TailDeletes | None, name: str, source: str
    ) -> Iterator[Part]:
        """Rows that hold of their keys, and in a tail what they take away. No views of these.

        Args:
            given: one batch, which is taken out: it is not held while the client has a part.
        """
        rows = given.pop()
        missed = None if takings is None else takings.of_misses(rows)
        if rows.num_rows and self._cutter.lacks(rows):
            yield from self._in_parts(rows, name, source)
        else:
            part = self._cutter.whole(rows, own=False)
            del rows
            if part.batch.num_rows:
                part = part._replace(batch=self._marked(part.batch))
                yield from _let_go([Part(part.batch, name, source, part.nbytes)])
            else:
                self._let_others()
            del part
        if takings is not None and missed is not None:
            yield from self._taken(takings, missed, name, source)

    def _in_parts(self, rows: pa.RecordBatch, name: str, source: str) -> Iterator[Part]:
        """Those of the rows that match, which lack columns of the answer."""
        found, row = copied(self._cutter.matching(rows)), 0
        del rows
        with self._groups.result_spill.held(found.nbytes):
            while row < found.num_rows:
                view = self._cutter.fitting(found, row, found.num_rows)
                row += view.num_rows
                part = self._cutter.whole(view, own=True)
                yield from _let_go([Part(self._marked(part.batch), name, source, part.nbytes)])
                del part
        self._let_others()

    def _takings(self) -> TailDeletes | None:
        selection = self.selection
        if not selection.marks_operations:
            return None
        return TailDeletes(self.snapshot.definition, selection.schema, selection.predicate)

    def _gone_since(
        self, replaced: Replaced, merge: MergeOnRead, takings: TailDeletes, name: str
    ) -> Iterator[Part]:
        """Keys of a version's files that neither today's files nor the buffers have."""
        definition = self.snapshot.definition
        key = definition.primary_key
        there = align_table(list(self._pieces(replaced.added, key)), definition.key_schema)
        with self._groups.result_spill.held(there.nbytes):
            for piece in self._pieces(replaced.removed, key):
                gone = merge.without(merge.without_newer(piece), there)
                del piece
                yield from self._taken(takings, takings.of_keys(gone), name, "file")

    def _taken(
        self, takings: TailDeletes, keys: pa.RecordBatch, name: str, source: str
    ) -> Iterator[Part]:
        row = 0
        while row < keys.num_rows:
            some = self._cutter.fitting(keys, row, keys.num_rows)
            row += some.num_rows
            for part in cut(takings.deletes(some)):
                yield Part(copied(part), name, source, sent_bytes(part))

    def _pieces(self, adds: Sequence[Add], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """The rows of files, each time as many as make a part."""
        for add in adds:
            file = DataFile.of(add, self._folder)
            footer = self._groups.footer(file)
            for index in range(footer.num_row_groups):
                row, rows = 0, footer.row_group(index).num_rows
                while row < rows:
                    group = self._groups.group(file, index, columns, id(self)).batch
                    # Not by a name: the whole group would be held until the next one is wanted.
                    piece = [window(group, row, rows).batch]
                    row += piece[0].num_rows
                    del group
                    if row == rows:
                        self._groups.done(file.path, index, columns, id(self))
                    yield piece.pop()

    def _rows_at(self, source: object, row: int, stop: int) -> tuple[int, int, pa.RecordBatch]:
        if isinstance(source, RowsFile):
            start, batch = self._spilled_at(source, row)
        else:
            assert isinstance(source, BufferedRows)
            chunks = source.chunks()
            start, batch = chunks[bisect_right(chunks, row, key=lambda chunk: chunk.start) - 1][:2]
        return (
            row,
            min(batch.num_rows, stop - start) - (row - start),
            batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start)),
        )

    def _spilled_at(self, source: RowsFile, row: int) -> tuple[int, pa.RecordBatch]:
        with self.turns.given_back():
            return source.at(row)

    def _let_others(self) -> None:
        """In the middle of much work without a part to show for it."""
        if time.monotonic() - self._working_since > TURN_S:
            self.turns.let_others()
            self._working_since = time.monotonic()

    def _wanted_part(
        self, wanted: WantedRows, group: pa.RecordBatch, row: int, start: int
    ) -> tuple[int, Piece]:
        """As :meth:`Cutter.part`, of a group whose first row is the file's row ``start``."""
        view = self._cutter.fitting(group, row, group.num_rows)
        with self.turns.given_back():
            numbers = wanted.numbers(start + row, view.num_rows)
        found, own = wanted.of(view, numbers)
        return view.num_rows, self._cutter.whole(found, own=own)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with what was done to them, where that is asked for."""
        if not self.selection.marks_operations:
            return batch
        marks = pa.array(["upsert"] * batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, marks], schema=self.selection.schema)


def _let_go(parts: list[Part]) -> Iterator[Part]:
    """All of them; none is held while the client has it."""
    parts.reverse()
    while parts:
        yield parts.pop()
