"""The rows of many changes at once, column by column.

    message   I oid N tuple   |   U oid [K|O tuple] N tuple   |   D oid K|O tuple
    tuple     number of cells, cells: n (null) | u (unchanged, not in the log) | t length text

Law of this file: pure; a step goes over one cell of all rows, and every step is checked against the
row's end before anything is read. What is not known is refused.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingester.postgres.pgoutput import UnknownMessage

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_INSERT, _UPDATE, _DELETE = b"IUD"
_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT = b"nut"
_HEAD_BYTES = 6
"""The kind, the table's OID, the letter of the first part."""


class Cells(NamedTuple):
    """One cell of each of many rows."""

    kinds: npt.NDArray[np.uint8]
    starts: Places
    """The places of the texts in the buffer; anything within the row where there is no text."""
    lengths: Places
    """0 where there is no text."""

    def texts_where(self) -> Mask:
        """The rows that have a text."""
        return np.equal(self.kinds, _TEXT)

    def unchanged(self) -> Mask:
        """The rows whose value is not in the log, as an update has left it as it was."""
        return np.equal(self.kinds, _UNCHANGED)


class _Walk:
    """Goes over tuples of many rows, one cell of each at a time."""

    def __init__(self, data: npt.NDArray[np.uint8], at: Places, ends: Places, columns: int) -> None:
        self._data, self._ends = data, ends
        # Four bytes at any place, as a number.
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
    """The rows of changes of one table whose columns stay as they are."""

    def __init__(self, messages: Sequence[bytes], columns: int) -> None:
        """Take messages of changes, at least one, together of less than 2 GiB.

        Raises:
            UnknownMessage
        """
        self.rows = len(messages)
        self._columns = columns
        lengths = np.fromiter(map(len, messages), np.int64, self.rows)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        # A lone message is not copied.
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
        """The cells of each column: of the old rows, and of the new ones as they are sent.

        The kind of a cell is 0 where there is no such row.

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
            raise UnknownMessage("pgoutput: a change goes on behind its row")

    def texts(self, cells: Cells) -> pa.Array:
        """The texts of cells as bytes, null where there is none."""
        there = cells.texts_where()
        # Values and what lies between them take turns; the values are taken out of that.
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
        """Where the new tuple begins, or the change ends, in rows that have an old one."""
        walk = self._walk(olds, self._starts[olds] + _HEAD_BYTES)
        assert walk is not None
        for _ in range(self._columns):
            walk.step()
        updates = self.is_update[olds]
        if (walk.at[~updates] != self._ends[olds][~updates]).any():
            raise UnknownMessage("pgoutput: a change goes on behind its row")
        at = walk.at[updates]
        if (at >= self._ends[olds][updates]).any() or (self._data[at] != _NEW).any():
            raise UnknownMessage("pgoutput: an update without its new row")
        return walk.at + updates

    def _walk(self, rows: Places, at: Places) -> _Walk | None:
        if not len(rows):
            return None
        return _Walk(self._data, at, self._ends[rows], self._columns)

    def _spread(self, rows: Places, walk: _Walk | None) -> Cells:
        """The next cells of some rows, as cells of all of them."""
        if walk is not None and len(rows) == self.rows:
            return walk.step()
        kinds = np.zeros(self.rows, np.uint8)
        starts, lengths = self._starts.copy(), np.zeros(self.rows, np.int64)
        if walk is not None:
            kinds[rows], starts[rows], lengths[rows] = walk.step()
        return Cells(kinds, starts, lengths)


def filled(cells: Cells, others: Cells) -> Cells:
    """Cells that are in the log; the others' texts where only they are."""
    where = np.equal(cells.kinds, _UNCHANGED) & np.equal(others.kinds, _TEXT)
    if not where.any():
        return cells
    return instead(cells, others, where)


def instead(cells: Cells, others: Cells, where: Mask) -> Cells:
    """Cells, but the others where that is said."""
    return Cells(
        np.where(where, others.kinds, cells.kinds),
        np.where(where, others.starts, cells.starts),
        np.where(where, others.lengths, cells.lengths),
    )
