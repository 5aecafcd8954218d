"""One part after another out of a larger batch: the rows that match, in the answer's columns.

A part that is a view keeps the whole batch in memory for as long as the client does not move. All
answers together may have views of :data:`VIEW_BYTES`, and what they join to look at counts as well;
beyond that parts are smaller, and copied.

Law of this file: a client that stops reading holds its part in the server and nothing else, but for
those few bytes in all. Nothing is kept between two parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ingester.buffer import Chunk
from ingester.query.parts import (
    AIM_BYTES,
    CROWD_BYTES,
    PART_BYTES,
    Piece,
    chunk_at,
    copied,
    joinable,
    sent_bytes,
    window,
)
from ingester.schema.align import Aligner
from persist.predicate.predicate import Predicate

VIEW_BYTES = 8 << 20
LOOK_TIMES = 16
"""The most times a part's rows that are looked at for one part, where few match."""
LOOK_BYTES = PART_BYTES * 3 // 4
"""Rows of a buffer that are looked at for one part, times the former: those that match, a little
more often than just before, still make no more than one."""


class Views:
    """Counts what parts on their way keep in memory besides themselves. Any thread."""

    def __init__(self, limit: int = VIEW_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Count a view of a batch of this size until :meth:`give`; False where it has no room."""
        with self._lock:
            if self.nbytes + nbytes > self._limit:
                return False
            self.nbytes += nbytes
            return True

    def give(self, nbytes: int) -> None:
        """Stop counting a view: it is sent."""
        with self._lock:
            self.nbytes -= nbytes


class Slicer:
    """Cuts one answer's parts.

    Args:
        schema: the answer's columns as they are stored.
        looked_at: the columns of the predicate.
        pause: is called between two comparisons of a row with the predicate's values.
    """

    def __init__(
        self,
        schema: pa.Schema,
        looked_at: pa.Schema,
        predicate: Predicate,
        views: Views,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._align = Aligner(schema)
        self._looked_at = Aligner(looked_at)
        self._predicate = predicate
        self._views = views
        self._pause = pause
        self._held = 0
        self._share = 1.0
        """The share of what was looked at last that matched, in bytes."""

    def let_go(self) -> None:
        """Let go of what the last part is a view of: it is sent, or nobody wants it any more."""
        held, self._held = self._held, 0
        if held:
            self._views.give(held)

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all matching rows, with the columns that they have."""
        mask = self._mask(batch)
        return batch if mask is None else batch.filter(mask)

    def lacks(self, batch: pa.RecordBatch) -> bool:
        """Whether the answer has columns that the batch does not have."""
        return self._align.absent_bytes(batch.schema) != (0, 0)

    def fitting(self, batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        """Return rows from ``start`` on that make a part with all columns, at least one; a view."""
        absent, beside = self._align.absent_bytes(batch.schema)
        if not beside:
            return window(batch, start, stop).batch
        own = sent_bytes(batch) / batch.num_rows
        rows = max(1, int((AIM_BYTES - beside) / (own + absent)))
        view = window(batch, start, min(stop, start + rows)).batch
        # Its own rows may be larger than others.
        while view.num_rows > 1 and _with(absent, beside, view) > PART_BYTES:
            view = view.slice(0, view.num_rows // 2)
        return view

    def whole(self, batch: pa.RecordBatch, *, own: bool) -> Piece:
        """Return all matching rows of what makes at most one part; see :meth:`fitting`.

        Args:
            own: whether its memory holds nothing else.
        """
        self.let_go()
        mask = self._mask(batch)
        if mask is not None:
            batch, own = batch.filter(mask), True
        aligned = self._align(batch)
        found = aligned if own or batch.num_rows == 0 else copied(aligned)
        return Piece(found, sent_bytes(found))

    def part(
        self, batch: pa.RecordBatch, start: int, stop: int, nbytes: int | None = None
    ) -> tuple[int, Piece]:
        """Return (rows looked at, the matching ones among them), from a row of a batch on.

        ``start < stop``; at least one row is looked at, and at most one part comes.

        Args:
            nbytes: of the whole batch, where that is known.
        """
        self.let_go()
        if self.lacks(batch):
            return self._widened(batch, start, stop)
        aligned = self._align(batch)
        kept = nbytes or sent_bytes(batch)
        may_view = self._views.take(kept)
        self._held = kept if may_view else 0
        size = nbytes if aligned is batch else None
        view = window(aligned, start, stop, size, AIM_BYTES if may_view else CROWD_BYTES)
        if self._predicate.conjunctions:
            rows = min(stop - start, int(view.batch.num_rows * self._look_times()))
            mask = self._mask(batch.slice(start, rows))
            if mask is not None:
                looked_at = AIM_BYTES * rows // max(1, view.batch.num_rows)
                found = aligned.slice(start, rows).filter(mask)
                return self._first_part(found, mask, rows, looked_at)
        if kept <= PART_BYTES and view.batch.num_rows == batch.num_rows:
            self.let_go()  # it is no larger than a part may be
            return view.batch.num_rows, view
        if may_view:
            return view.batch.num_rows, view
        return view.batch.num_rows, view._replace(batch=copied(view.batch))

    def buffered(self, chunks: Sequence[Chunk], row: int, stop: int) -> tuple[int, Piece]:
        """Return (rows looked at, the matching ones) of the part that begins at a buffer's row."""
        index = chunk_at(chunks, row)
        chunk = chunks[index]
        if row == chunk.start:
            few, nbytes = self._few(chunks[index:], stop)
            if len(few) > 1:
                joined = pa.concat_batches(few)
                if self.lacks(joined):
                    return self.part(joined, 0, joined.num_rows)
                return self._looked_through(joined, nbytes)
        stop = min(chunk.batch.num_rows, stop - chunk.start)
        nbytes = chunk.nbytes + self._align.beside_bytes
        return self.part(chunk.batch, row - chunk.start, stop, nbytes)

    def whole_or_part(self, batch: pa.RecordBatch, *, own: bool) -> tuple[int, Piece]:
        """Do as :meth:`part` with at most a part's rows, which may lack columns."""
        if self.lacks(batch):
            return self.part(batch, 0, batch.num_rows)
        return batch.num_rows, self.whole(batch, own=own)

    def _widened(self, batch: pa.RecordBatch, start: int, stop: int) -> tuple[int, Piece]:
        """Do as :meth:`part` with a batch that lacks columns: it is cut before it has them."""
        if not self._predicate.conjunctions:
            view = self.fitting(batch, start, stop)
            found = self._align(copied(view))
            return view.num_rows, Piece(found, sent_bytes(found))
        view = window(batch, start, stop).batch
        mask = self._mask(view)
        matching = view if mask is None else view.filter(mask)
        if not matching.num_rows:
            return view.num_rows, Piece(matching, 0)
        first, rows = self.fitting(matching, 0, matching.num_rows), view.num_rows
        if first.num_rows < matching.num_rows:
            assert mask is None or len(mask) == rows
            rows = first.num_rows
            if mask is not None:
                numbers = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
                rows = int(numbers[first.num_rows - 1]) + 1
        found = self._align(copied(first))
        return rows, Piece(found, sent_bytes(found))

    def _few(self, chunks: Sequence[Chunk], stop: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the first chunks that are worth joining, and their bytes.

        Each call into Arrow lets go of the interpreter, and waits for it where others compute: if
        few rows match, those of many parts are looked at in one, as far as :class:`Views` has room.
        """
        self.let_go()
        times = self._look_times()
        if self._predicate.columns and times > 1 and not self.lacks(chunks[0].batch):
            few, nbytes = joinable(chunks, stop, int(LOOK_BYTES * times))
            if nbytes > PART_BYTES and self._views.take(nbytes):
                self._held = nbytes
                return few, nbytes
        return joinable(chunks, stop)

    def _looked_through(self, batch: pa.RecordBatch, nbytes: int) -> tuple[int, Piece]:
        """Return (rows looked at, the first part of the matching ones) of a batch of its own."""
        mask, aligned = self._mask(batch), self._align(batch)
        found = aligned if mask is None else aligned.filter(mask)
        del aligned
        return self._first_part(found, mask, batch.num_rows, nbytes)

    def _look_times(self) -> float:
        """How many times a part's rows are looked at for one part, by what matched of late."""
        return max(1.0, min(LOOK_TIMES, 1 / max(self._share, 1 / LOOK_TIMES)))

    def _first_part(
        self, found: pa.RecordBatch, mask: pa.Array | None, rows: int, looked_at: int
    ) -> tuple[int, Piece]:
        """Return (rows looked at, the first of the matching rows that make one part).

        Args:
            mask: of the rows; None where all match.
            looked_at: the bytes of the rows, of which the next look's size is reckoned.
        """
        nbytes = sent_bytes(found) if found.num_rows else 0
        self._share = nbytes / max(1, looked_at)
        if nbytes > PART_BYTES and found.num_rows > 1:
            first, nbytes = window(found, 0, found.num_rows, nbytes)
            if mask is None:
                rows = first.num_rows
            else:
                numbers = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
                rows = int(numbers[first.num_rows - 1]) + 1
            found = copied(first)
        self.let_go()
        return rows, Piece(found, nbytes)

    def _mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        if not self._predicate.conjunctions:
            return None
        return self._predicate.mask(self._looked_at(batch), self._pause)


def _with(absent: float, beside: int, view: pa.RecordBatch) -> float:
    """Return the bytes of the rows on the wire with the columns that they lack."""
    return beside + sent_bytes(view) + absent * float(view.num_rows)
