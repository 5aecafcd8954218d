"""Changes of one table become a message of the replication stream, column by column.

    message   I oid N tuple   |   U oid [K|O tuple] N tuple   |   D oid K|O tuple
    tuple     number of cells, cells: n (null) | u (unchanged, not in the log) | t length text

A step reads one cell of all rows; it is checked against the rows' ends before anything is read
(``tests/postgres/test_tuple_data.py``). A value that cannot be kept is reported with its table,
row and column.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.pgoutput import UnknownMessage
from ingester.postgres.states import Layout, ShapeColumn
from ingester.postgres.types import ValueNotKept, arrow_values

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_INSERT, _UPDATE, _DELETE = b"IUD"
_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT = b"nut"
_HEAD_BYTES = 6
"""The kind, the table's OID, and the letter of the first part."""


class Cells(NamedTuple):
    """One cell of each of many rows."""

    kinds: npt.NDArray[np.uint8]
    starts: Places
    """Positions of the texts in the buffer; arbitrary within the row if there is no text."""
    lengths: Places
    """0 if there is no text."""

    def texts_where(self) -> Mask:
        """The rows with a text."""
        return np.equal(self.kinds, _TEXT)

    def unchanged(self) -> Mask:
        """The rows whose value an update did not change, and the log omits."""
        return np.equal(self.kinds, _UNCHANGED)


class _TupleWalk:
    """Walks the tuples of many rows in parallel, cell by cell."""

    def __init__(self, data: npt.NDArray[np.uint8], at: Places, ends: Places, columns: int) -> None:
        self._data, self._ends = data, ends
        # Four bytes at any offset, as a number.
        self._words: npt.NDArray[Any] = np.ndarray(
            (max(0, len(data) - 3),), ">u4", data, strides=(1,)
        )
        self._need(at + 2)
        counts = (data[at].astype(np.int64) << 8) | data[at + 1]
        if (counts != columns).any():
            odd = int(counts[counts != columns][0])
            raise UnknownMessage(f"pgoutput: a row of {odd} cells in a table of {columns} columns")
        self.at: Places = at + 2

    def step(self) -> Cells:
        """The next cell of each row."""
        self._need(self.at + 1)
        kinds = self._data[self.at]
        texts = kinds == _TEXT
        starts = self.at + 1
        if texts.all():
            self._need(self.at + 5)
            lengths = self._words[starts].astype(np.int64)
            starts = starts + 4
        else:
            known = texts | (kinds == _NULL) | (kinds == _UNCHANGED)
            if not known.all():
                raise UnknownMessage(f"pgoutput: a cell of kind {chr(kinds[~known][0])!r}")
            self._need(np.where(texts, self.at + 5, self.at))
            lengths = np.where(texts, self._words[np.where(texts, starts, 0)].astype(np.int64), 0)
            starts = starts + np.where(texts, 4, 0)
        self.at = starts + lengths
        self._need(self.at)
        return Cells(kinds, starts, lengths)

    def _need(self, upto: Places) -> None:
        if (upto > self._ends).any():
            raise UnknownMessage("pgoutput: a change ends too early")


class ChangedRows:
    """The rows of changes of one table, under one Relation message."""

    def __init__(self, messages: Sequence[bytes], columns: int) -> None:
        """Take at least one message, and less than 2 GiB together.

        Raises:
            UnknownMessage
        """
        self.rows = len(messages)
        self._columns = columns
        lengths = np.fromiter(map(len, messages), np.int64, self.rows)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        # Joining a single message does not copy it.
        joined = b"".join(messages)
        self._buffer = pa.py_buffer(joined)
        self._data = np.frombuffer(joined, np.uint8)
        if (lengths < _HEAD_BYTES).any():
            raise UnknownMessage("pgoutput: a change ends too early")
        self._kinds = self._data[self._starts]
        parts = self._data[self._starts + _HEAD_BYTES - 1]
        self.has_old: Mask = (parts == _KEY) | (parts == _OLD)
        self.has_new: Mask = self._kinds != _DELETE
        self.is_update: Mask = self._kinds == _UPDATE
        fits = np.where(self._kinds == _DELETE, self.has_old, self.has_old | (parts == _NEW))
        fits &= ~((self._kinds == _INSERT) & self.has_old)
        fits &= (self._kinds == _INSERT) | self.is_update | ~self.has_new
        if not fits.all():
            at = int(self._starts[np.flatnonzero(~fits)[0]])
            head = bytes(self._data[at : at + _HEAD_BYTES])
            raise UnknownMessage(f"pgoutput: {head!r} begins no change")

    def columns(self) -> Iterator[tuple[Cells, Cells]]:
        """The cells of each column: of the old rows, and of the new rows.

        The kind of a cell is 0 if the change has no such row.

        Raises:
            UnknownMessage
        """
        olds, news = np.flatnonzero(self.has_old), np.flatnonzero(self.has_new)
        new_at = self._starts + _HEAD_BYTES
        if len(olds):
            new_at[olds] = self._behind_old(olds)
        old_walk = self._walk(olds, self._starts[olds] + _HEAD_BYTES)
        new_walk = self._walk(news, new_at[news])
        for _ in range(self._columns):
            yield self._spread(olds, old_walk), self._spread(news, new_walk)
        if new_walk is not None and (new_walk.at != self._ends[news]).any():
            raise UnknownMessage("pgoutput: a change has bytes after its row")

    def texts(self, cells: Cells) -> pa.Array:
        """The texts of cells as bytes, null if there is none."""
        there = cells.texts_where()
        # Values and gaps alternate; take picks the values.
        offsets = np.empty(2 * self.rows + 1, np.int32)
        offsets[0] = 0
        offsets[1::2] = cells.starts
        offsets[2::2] = cells.starts + cells.lengths
        buffers = [None, pa.py_buffer(offsets), self._buffer]
        turns = pa.Array.from_buffers(pa.binary(), 2 * self.rows, buffers)
        if self.rows == 1 and there[0]:
            return turns.slice(1, 1)
        odd = np.arange(1, 2 * self.rows, 2)
        return turns.take(pa.array(odd, mask=None if there.all() else ~there))

    def _behind_old(self, olds: Places) -> Places:
        """The position after the old tuple, in rows that have one."""
        walk = self._walk(olds, self._starts[olds] + _HEAD_BYTES)
        assert walk is not None
        for _ in range(self._columns):
            walk.step()
        updates = self.is_update[olds]
        if (walk.at[~updates] != self._ends[olds][~updates]).any():
            raise UnknownMessage("pgoutput: a change has bytes after its row")
        at = walk.at[updates]
        if (at >= self._ends[olds][updates]).any() or (self._data[at] != _NEW).any():
            raise UnknownMessage("pgoutput: an update without its new row")
        return walk.at + updates

    def _walk(self, rows: Places, at: Places) -> _TupleWalk | None:
        if not len(rows):
            return None
        return _TupleWalk(self._data, at, self._ends[rows], self._columns)

    def _spread(self, rows: Places, walk: _TupleWalk | None) -> Cells:
        """The next cells of some rows, as cells of all rows."""
        if walk is not None and len(rows) == self.rows:
            return walk.step()
        kinds = np.zeros(self.rows, np.uint8)
        starts, lengths = self._starts.copy(), np.zeros(self.rows, np.int64)
        if walk is not None:
            kinds[rows], starts[rows], lengths[rows] = walk.step()
        return Cells(kinds, starts, lengths)


def filled(cells: Cells, others: Cells) -> Cells:
    """Replace unchanged cells by the others' texts."""
    where = np.equal(cells.kinds, _UNCHANGED) & np.equal(others.kinds, _TEXT)
    if not where.any():
        return cells
    return instead(cells, others, where)


def instead(cells: Cells, others: Cells, where: Mask) -> Cells:
    """Replace cells where ``where`` is true."""
    return Cells(
        np.where(where, others.kinds, cells.kinds),
        np.where(where, others.starts, cells.starts),
        np.where(where, others.lengths, cells.lengths),
    )


class SyncMessage(NamedTuple):
    """A message of the replication stream."""

    table: str
    columns: tuple[SyncColumn, ...]
    batch: pa.RecordBatch


class _MessageRows(NamedTuple):
    changes: Sequence[bytes]
    layout: Layout
    rows: ChangedRows


def message_of(changes: Sequence[bytes], layout: Layout) -> SyncMessage:
    """Convert changes, at least one, to a message.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
        UnknownMessage
    """
    relation, shape = layout
    piece = _MessageRows(changes, layout, ChangedRows(changes, len(relation.columns)))
    rows = piece.rows
    wanted = {column.source: column for column in shape.columns}
    keys: dict[str, tuple[pa.Array, pa.Array]] = {}
    values: list[tuple[SyncColumn, pa.Array]] = []
    for source, (old, new) in zip(relation.columns, rows.columns(), strict=True):
        column = wanted.get(source.name)
        if column is None:
            continue
        whole = filled(new, old)
        if column.source not in shape.key:
            values.append((SyncColumn("value", column.name), _array(piece, column, whole)))
            unchanged = whole.unchanged()
            if unchanged.any():
                values.append((SyncColumn("changed", column.name), pa.array(~unchanged)))
            continue
        before = instead(filled(old, new), whole, rows.is_update & ~rows.has_old)
        keys[column.source] = (
            _key(piece, column, before, rows.is_update | ~rows.has_new),
            _key(piece, column, whole, rows.has_new),
        )
    names = [wanted[source].name for source in shape.key]
    columns = [SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in names]
    arrays = [keys[source][side] for side in (0, 1) for source in shape.key]
    columns += [column for column, _ in values]
    arrays += [array for _, array in values]
    numbers = [f"{number}" for number in range(len(arrays))]
    return SyncMessage(shape.target, tuple(columns), pa.record_batch(arrays, names=numbers))


def _key(piece: _MessageRows, column: ShapeColumn, cells: Cells, wanted: Mask) -> pa.Array:
    """A key column; a wanted row must have a value."""
    found = _array(piece, column, cells)
    if found.null_count != len(wanted) - np.count_nonzero(wanted):
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False) & wanted)
        at = int(missing[0])
        text = piece.rows.texts(cells)[at].as_py()
        error = ValueNotKept(column.source, at, _shown(text), "is not allowed in the key")
        raise error.of(piece.layout.shape.target, _key_text(piece, at))
    return found


def _array(piece: _MessageRows, column: ShapeColumn, cells: Cells) -> pa.Array:
    try:
        return arrow_values(column.type, piece.rows.texts(cells), column.source)
    except ValueNotKept as exc:
        raise exc.of(piece.layout.shape.target, _key_text(piece, exc.row_index)) from exc


def _key_text(piece: _MessageRows, row: int) -> str:
    """A row's key, as ``id=7, day=2026-11-26``."""
    relation, shape = piece.layout
    texts = {}
    for column, (old, new) in zip(relation.columns, piece.rows.columns(), strict=True):
        if column.name in shape.key:
            known = instead(new, old, ~new.texts_where() & old.texts_where())
            texts[column.name] = piece.rows.texts(known)[row].as_py()
    return ", ".join(f"{name}={_shown(texts[name])}" for name in shape.key)


def _shown(text: bytes | None) -> str:
    return "null" if text is None else text.decode(errors="backslashreplace")
