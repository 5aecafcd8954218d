"""One part after another out of a larger batch: the rows that match, in the answer's columns.

A part that is a view keeps the whole batch in memory for as long as the client does not move. All
answers together may have views of :data:`VIEW_BYTES`; beyond that parts are smaller, and copied.

Law of this file: a client that stops reading holds its part in the server and nothing else, but for
those few bytes in all. Nothing is kept between two parts.
"""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from ingester.query.align import align_batch
from ingester.query.parts import (
    AIM_BYTES,
    CROWD_BYTES,
    PART_BYTES,
    Piece,
    copied,
    sent_bytes,
    window,
)
from persist.predicate import Predicate

VIEW_BYTES = 8 << 20
LOOK_TIMES = 16
"""Where few rows match, so many times as many are looked at for one part."""


class Views:
    """What the parts that are on their way keep in memory besides themselves. Any thread."""

    def __init__(self, limit: int = VIEW_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Whether a view of a batch of this size may be sent; if so, until :meth:`give`."""
        with self._lock:
            if self.nbytes + nbytes > self._limit:
                return False
            self.nbytes += nbytes
            return True

    def give(self, nbytes: int) -> None:
        """The view is sent."""
        with self._lock:
            self.nbytes -= nbytes


class Cutter:
    """Cuts one answer's parts.

    Args:
        schema: the answer's columns as they are stored.
        looked_at: the columns of the predicate.
    """

    def __init__(
        self, schema: pa.Schema, looked_at: pa.Schema, predicate: Predicate, views: Views
    ) -> None:
        self._schema = schema
        self._looked_at = looked_at
        self._predicate = predicate
        self._views = views
        self._held = 0
        self._share = 1.0
        """Of the rows that were looked at last, how many matched."""

    def let_go(self) -> None:
        """The last part is sent, or nobody wants it any more."""
        held, self._held = self._held, 0
        if held:
            self._views.give(held)

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All matching rows, with the columns they have."""
        mask = self._mask(batch)
        return batch if mask is None else batch.filter(mask)

    def whole(self, batch: pa.RecordBatch, *, own: bool) -> Piece:
        """All matching rows of what makes at most one part.

        Args:
            own: whether its memory holds nothing else.
        """
        self.let_go()
        mask = self._mask(batch)
        wanted = align_batch(batch, self._schema)
        if mask is not None:
            wanted, own = wanted.filter(mask), True
        found = wanted if own or batch.num_rows == 0 else copied(wanted)
        return Piece(found, sent_bytes(found))

    def part(
        self, batch: pa.RecordBatch, start: int, stop: int, nbytes: int | None = None
    ) -> tuple[int, Piece]:
        """(rows looked at, the matching ones among them) from a row of a batch on.

        ``start < stop``; at least one row is looked at, and at most one part comes.

        Args:
            nbytes: of the whole batch, where that is known.
        """
        self.let_go()
        wanted = align_batch(batch, self._schema)
        kept = nbytes or sent_bytes(batch)
        may_view = self._views.take(kept)
        self._held = kept if may_view else 0
        size = nbytes if wanted is batch else None
        view = window(wanted, start, stop, size, AIM_BYTES if may_view else CROWD_BYTES)
        if self._predicate.conjunctions:
            times = min(LOOK_TIMES, 1 / max(self._share, 1 / LOOK_TIMES))
            rows = min(stop - start, int(view.batch.num_rows * times))
            mask = self._mask(batch.slice(start, rows))
            if mask is not None:
                return self._matching(wanted.slice(start, rows), mask)
        if kept <= PART_BYTES and view.batch.num_rows == batch.num_rows:
            self.let_go()  # it is no larger than a part may be
            return view.batch.num_rows, view
        if may_view:
            return view.batch.num_rows, view
        return view.batch.num_rows, view._replace(batch=copied(view.batch))

    def _matching(self, view: pa.RecordBatch, mask: pa.Array) -> tuple[int, Piece]:
        self.let_go()
        found, rows = view.filter(mask), view.num_rows
        self._share = found.num_rows / rows
        nbytes = sent_bytes(found)
        if nbytes > PART_BYTES and found.num_rows > 1:
            first, nbytes = window(found, 0, found.num_rows, nbytes)
            numbers = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            rows, found = int(numbers[first.num_rows - 1]) + 1, copied(first)
        return rows, Piece(found, nbytes)

    def _mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        if not self._predicate.conjunctions:
            return None
        return self._predicate.mask(align_batch(batch, self._looked_at))
