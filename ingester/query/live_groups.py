"""The operations that an answer of a live feed has: groups of rows, cut between two operations.

Law of this file: a group is of one buffer, and an answer of one epoch. The cut is a sequence, the
same one for all partitions: an operation, and so a transaction's share of a table, is in an answer
with all of its parts or with none. Any thread; buffers may grow meanwhile, behind ``upto``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from ingester.buffer import BufferedRows, BufferHandle
from ingester.query.live_position import Position
from ingester.query.parts import chunk_at

ANSWER_BYTES = 4 << 20
"""The size of an answer, unless its only operation is larger."""


class Tail(NamedTuple):
    """A buffer with operations behind a position."""

    handle: BufferHandle
    rows: BufferedRows

    @property
    def last(self) -> Position:
        """The position of the buffer's last operation."""
        return Position(self.handle.epoch, self.handle.last_seq)


class Group(NamedTuple):
    """Rows ``begin .. end`` of a buffer: those of its operations of these sequences."""

    handle: BufferHandle
    begin: int
    end: int
    first_seq: int
    last_seq: int


class Groups(NamedTuple):
    """What an answer has."""

    groups: tuple[Group, ...]
    position: Position
    """The last operation that the answer has, or could have had."""
    more: bool
    """Whether there are operations behind the position."""
    rows_behind: int = 0
    """The rows of these operations, whether they match or not."""


def groups_after(
    tails: Sequence[Tail], after: Position, now: Position, limit: int = ANSWER_BYTES
) -> Groups:
    """Choose the operations behind ``after``, up to ``now``, that make one answer.

    Args:
        tails: all buffers with such operations, those of a partition oldest first.
    """
    if not tails:
        return Groups((), max(after, now), False)
    epoch = min(tail.handle.epoch for tail in tails)
    own = [tail for tail in tails if tail.handle.epoch == epoch]
    after_seq = after.sequence if after.epoch == epoch else -1
    last = now.sequence if epoch == now.epoch else max(tail.last.sequence for tail in own)
    cut = _cut([_Sizes(tail.rows, after_seq, last, limit) for tail in own], last, limit)
    groups = []
    for handle, rows in own:
        span = rows.span(after_seq, cut)
        if span is not None:
            groups.append(Group(handle, rows.row_after(after_seq), rows.row_after(cut), *span))
    # As they were begun: whatever partition a key was in before, its newest row comes last.
    groups.sort(key=lambda group: group.handle.first_seq)
    more = cut < last or len(own) < len(tails)
    if not more:
        return Groups(tuple(groups), max(after, now), False)
    behind = sum(rows.row_after(last) - rows.row_after(cut) for _, rows in own)
    behind += sum(tail.rows.rows for tail in tails if tail.handle.epoch != epoch)
    return Groups(tuple(groups), Position(epoch, cut), True, behind)


class _Sizes:
    """The sizes of a buffer's operations behind a sequence, as far as an answer can have them."""

    def __init__(self, rows: BufferedRows, after_seq: int, last: int, limit: int) -> None:
        self._rows = rows
        span = rows.span(after_seq, last)
        self.first_seq = None if span is None else span[0]
        begin, end = rows.row_after(after_seq), rows.row_after(last)
        self._starts, self._bytes = [begin], [0.0]
        chunks = rows.chunks()
        for chunk in islice(chunks, max(0, chunk_at(chunks, begin)), None):
            if chunk.start >= end or self._bytes[-1] > limit:
                break
            stop = chunk.start + chunk.batch.num_rows
            share = (min(stop, end) - max(chunk.start, begin)) / chunk.batch.num_rows
            self._starts.append(min(stop, end))
            self._bytes.append(self._bytes[-1] + chunk.nbytes * share)

    @property
    def nbytes(self) -> float:
        """The bytes of all of them, or more than an answer may have."""
        return self._bytes[-1]

    def upto(self, seq: int) -> float:
        """The bytes of those up to a sequence, where rows of a chunk are equally large."""
        row = self._rows.row_after(seq)
        index = bisect_right(self._starts, row) - 1
        if index < 0:
            return 0.0
        if index == len(self._starts) - 1:
            return self._bytes[-1]
        share = (row - self._starts[index]) / (self._starts[index + 1] - self._starts[index])
        return self._bytes[index] + (self._bytes[index + 1] - self._bytes[index]) * share


def _cut(sizes: Sequence[_Sizes], last: int, limit: int) -> int:
    """The last sequence that an answer has: as many as fit, at least one."""
    if sum(each.nbytes for each in sizes) <= limit:
        return last
    least = min(each.first_seq for each in sizes if each.first_seq is not None)
    most = last
    while least < most:
        middle = (least + most + 1) // 2
        if sum(each.upto(middle) for each in sizes) <= limit:
            least = middle
        else:
            most = middle - 1
    return least
