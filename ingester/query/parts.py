"""Cutting rows into the parts that an answer is sent in.

A part has at most :data:`PART_BYTES`, or one row. :class:`Slicer` filters rows, brings them to the
answer's columns and returns one part at a time. Nothing is kept between two parts, so a client that
stops reading holds one part.

A part that is a view keeps its whole batch in memory until it is sent. :class:`Views` bounds what
the views of all answers keep alive; beyond that, parts are smaller and copied.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ingester.buffer.rows import MIXED, Chunk
from ingester.schema.align import Aligner
from persist.predicate.predicate import Predicate

PART_BYTES = 256 * 1024
AIM_BYTES = PART_BYTES * 15 // 16
"""Target size. Parts are cut by the average row size, so the target is below the limit."""
CROWD_BYTES = PART_BYTES * 4 // 8
"""Target size once the views have no room left."""

SMALL_BYTES = 2 * PART_BYTES
"""Larger chunks are not joined: filtering one alone costs no more than the copy."""


class Piece(NamedTuple):
    """Rows of at most one part."""

    batch: pa.RecordBatch
    nbytes: int
    """Size of the rows on the wire."""


def window(
    batch: pa.RecordBatch,
    start: int,
    stop: int,
    nbytes: int | None = None,
    aim: int = AIM_BYTES,
) -> Piece:
    """Return a view of the rows from ``start`` that make one part; at least one row.

    The range is cut evenly, because every part costs the same to send, whatever its size.

    Args:
        start: must be below ``stop``.
        nbytes: size of the whole batch, if known.
        aim: target size of the part in bytes.
    """
    rows = stop - start
    nbytes = (nbytes or sent_bytes(batch)) * rows // max(1, batch.num_rows)
    part = batch.slice(start, -(-rows // max(1, -(-nbytes // aim))))
    if nbytes <= PART_BYTES // 2 and part.num_rows == batch.num_rows:
        return Piece(part, nbytes)
    while (size := sent_bytes(part)) > PART_BYTES and part.num_rows > 1:
        # At most halved per step: one large row may follow many small ones.
        part = part.slice(0, max(part.num_rows // 2, part.num_rows * AIM_BYTES // size))
    return Piece(part, size)


def sent_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of the rows on the wire.

    Close to ``batch.nbytes`` and several times faster, except for a view deep inside a batch.
    """
    size: int = pa.ipc.get_record_batch_size(batch)
    return size


def chunk_at(chunks: Sequence[Chunk], row: int) -> int:
    """Return the index of the chunk that holds a row."""
    return bisect_right(chunks, row, key=lambda chunk: chunk.start) - 1


def rows_at(chunks: Sequence[Chunk], row: int, stop: int) -> pa.RecordBatch:
    """Return the rows ``row..stop-1`` as far as they are in the same chunk as ``row``."""
    start, batch = chunks[chunk_at(chunks, row)][:2]
    return batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start))


def joinable(
    chunks: Sequence[Chunk], stop: int, most_bytes: int = PART_BYTES
) -> tuple[list[pa.RecordBatch], int]:
    """Return the leading chunks that may be joined, and their size in bytes.

    Recent rows are in many small chunks, and every part costs the same, whatever its size. Fewer
    than two chunks need no joining.
    """
    batches: list[pa.RecordBatch] = []
    nbytes, schema_number = 0, chunks[0].schema_number
    if schema_number == MIXED:
        return batches, nbytes
    for chunk in chunks:
        ends_inside = chunk.start + chunk.batch.num_rows <= stop
        if chunk.nbytes > SMALL_BYTES or chunk.schema_number != schema_number or not ends_inside:
            break
        if nbytes + chunk.nbytes > most_bytes:
            break
        batches.append(chunk.batch)
        nbytes += chunk.nbytes
    return batches, nbytes


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a compact copy of the rows."""
    if batch.num_columns == 0:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield all parts of a batch, in order, as views."""
    start = 0
    while start < batch.num_rows:
        part = window(batch, start, batch.num_rows).batch
        yield part
        start += part.num_rows


VIEW_BYTES = 8 << 20
LOOK_TIMES = 16
"""Up to this many parts' rows are filtered for one part when few rows match."""
LOOK_BYTES = PART_BYTES * 3 // 4
"""Bytes of buffered rows filtered per part, times the factor above. The margin keeps a slightly
higher match rate than the last one within one part."""


class Views:
    """Counts the bytes that unsent parts keep alive besides themselves. Thread-safe."""

    def __init__(self, limit: int = VIEW_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Count a view of a batch of this size until :meth:`give`; False if there is no room."""
        with self._lock:
            if self.nbytes + nbytes > self._limit:
                return False
            self.nbytes += nbytes
            return True

    def give(self, nbytes: int) -> None:
        """Stop counting a view that was sent."""
        with self._lock:
            self.nbytes -= nbytes


class Slicer:
    """Filters and cuts the parts of one answer.

    Args:
        schema: the answer's columns as stored.
        looked_at: the predicate's columns.
        pause: called between two comparisons of the rows with the predicate's values.
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
        """Matching share of the rows filtered last, in bytes."""

    def let_go(self) -> None:
        """Stop counting the batch behind the last part."""
        held, self._held = self._held, 0
        if held:
            self._views.give(held)

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all matching rows, without adding missing columns."""
        mask = self._mask(batch)
        return batch if mask is None else batch.filter(mask)

    def lacks(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch is missing columns of the answer."""
        return self._align.absent_bytes(batch.schema) != (0, 0)

    def fitting(self, batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        """Return a view of at least one row that makes one part once missing columns are added."""
        absent, beside = self._align.absent_bytes(batch.schema)
        if not beside:
            return window(batch, start, stop).batch
        own = sent_bytes(batch) / batch.num_rows
        rows = max(1, int((AIM_BYTES - beside) / (own + absent)))
        view = window(batch, start, min(stop, start + rows)).batch
        # These rows may be larger than the average.
        while view.num_rows > 1 and _with(absent, beside, view) > PART_BYTES:
            view = view.slice(0, view.num_rows // 2)
        return view

    def whole(self, batch: pa.RecordBatch, *, own: bool) -> Piece:
        """Return all matching rows of a batch that makes at most one part (see :meth:`fitting`).

        Args:
            own: whether the batch's memory holds nothing else; otherwise the rows are copied.
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
        """Filter rows from ``start``; return (number of rows consumed, matching rows).

        At least one row is consumed, and the matching rows make at most one part.

        Args:
            start: must be below ``stop``.
            nbytes: size of the whole batch, if known.
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
            self.let_go()  # the batch itself is at most one part
            return view.batch.num_rows, view
        if may_view:
            return view.batch.num_rows, view
        return view.batch.num_rows, view._replace(batch=copied(view.batch))

    def buffered(self, chunks: Sequence[Chunk], row: int, stop: int) -> tuple[int, Piece]:
        """Return (number of rows consumed, matching rows) from a row of a buffer on."""
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
        """As :meth:`part`, for a batch of at most one part that may be missing columns."""
        if self.lacks(batch):
            return self.part(batch, 0, batch.num_rows)
        return batch.num_rows, self.whole(batch, own=own)

    def _widened(self, batch: pa.RecordBatch, start: int, stop: int) -> tuple[int, Piece]:
        """As :meth:`part`, for a batch with missing columns: cut first, then widened."""
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
        """Return the leading chunks worth joining, and their size in bytes.

        Each call into Arrow releases the GIL and has to wait to get it back. If few rows match,
        several parts' rows are therefore filtered in one call, as far as :class:`Views` has room.
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
        """Filter a joined batch; return (number of rows consumed, the first part)."""
        mask, aligned = self._mask(batch), self._align(batch)
        found = aligned if mask is None else aligned.filter(mask)
        del aligned
        return self._first_part(found, mask, batch.num_rows, nbytes)

    def _look_times(self) -> float:
        """How many parts' rows to filter for one part, from the last matching share."""
        return max(1.0, min(LOOK_TIMES, 1 / max(self._share, 1 / LOOK_TIMES)))

    def _first_part(
        self, found: pa.RecordBatch, mask: pa.Array | None, rows: int, looked_at: int
    ) -> tuple[int, Piece]:
        """Cut the first part from matching rows; return (number of rows consumed, the part).

        Args:
            mask: which of the rows match; None if all do.
            looked_at: size of the filtered rows in bytes; determines how many are filtered next.
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
    """Return the size of the rows on the wire once missing columns are added."""
    return beside + sent_bytes(view) + absent * float(view.num_rows)
