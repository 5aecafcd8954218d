"""Positions of a live feed, and the choice of operations for one answer.

An answer consists of groups: rows of one buffer, all of one epoch. It is cut at one sequence for
all partitions, so an operation, and a transaction's share of the table, is in an answer
completely or not at all (tests/query/test_live_groups.py). :class:`GoneOperations` records which
operations are only in files. Thread-safe; buffers may grow meanwhile beyond ``upto``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ingester.buffer import BufferedRows, BufferHandle
from ingester.query.parts import chunk_at

MAX_GONE = 64
"""Limit on recorded facts. Merged facts may report more operations as gone, never fewer."""


class Position(NamedTuple):
    """An operation of one daemon's log; positions sort in log order."""

    epoch: int
    sequence: int


BEGINNING = Position(-1, -1)
"""Precedes every operation."""
NO_VERSION = -1
"""The version of a follower that does not name one."""


class GoneOperation(NamedTuple):
    """Operations that are only in files."""

    last: Position
    version: int
    """First version whose files have them."""


class GoneOperations:
    """The gone operations of one table, as at most ``MAX_GONE`` facts."""

    def __init__(self) -> None:
        self._facts: list[GoneOperation] = []

    def note(self, last: Position, version: int) -> None:
        """Record that operations up to ``last`` are only in files, as of ``version``."""
        new = GoneOperation(last, version)
        if any(fact.last >= last and fact.version >= version for fact in self._facts):
            return
        self._facts = [f for f in self._facts if f.last > last or f.version > version]
        self._facts.append(new)
        if len(self._facts) > MAX_GONE:
            first, second, *rest = self._facts
            merged = GoneOperation(max(first.last, second.last), max(first.version, second.version))
            self._facts = rest
            self.note(*merged)

    def behind(self, position: Position, version: int) -> GoneOperation | None:
        """Return a fact about operations after the position that neither buffers nor the version's
        files have, or None.
        """
        for fact in self._facts:
            if fact.last > position and fact.version > version:
                return fact
        return None


@dataclass(frozen=True, slots=True)
class LogPast:
    """The epochs of a daemon whose operations are known: its own and those in its log."""

    ingester_id: str
    epoch: int
    ends: Mapping[int, int]
    """Last sequence of each epoch that the log had at the start."""

    def knows(self, position: Position) -> bool:
        """Return whether an operation of an earlier epoch is known: at the start, the log held it
        or a later operation of its epoch.
        """
        end = self.ends.get(position.epoch)
        return end is not None and position.sequence <= end

    def after_lost(self, epochs: Collection[int]) -> Position | None:
        """Return the first position after epochs of which no log was here; None if all were.

        What only the lost log of such an epoch had is gone, so no position in it is known: a
        follower may have more than the operations that came back from the store.
        """
        known = {*self.ends, self.epoch}
        lost = [epoch for epoch in epochs if epoch not in known]
        if not lost:
            return None
        return Position(min(epoch for epoch in known if epoch > max(lost)), 0)


ANSWER_BYTES = 4 << 20
"""Size limit of an answer in bytes, unless its only operation is larger."""


class BufferTail(NamedTuple):
    """A buffer with operations after a position."""

    handle: BufferHandle
    rows: BufferedRows

    @property
    def last(self) -> Position:
        """Position of the buffer's last operation."""
        return Position(self.handle.epoch, self.handle.last_seq)


class LiveGroup(NamedTuple):
    """Rows ``begin..end-1`` of a buffer: its operations with these sequences."""

    handle: BufferHandle
    begin: int
    end: int
    first_seq: int
    last_seq: int


class Groups(NamedTuple):
    """The content of an answer."""

    groups: tuple[LiveGroup, ...]
    position: Position
    """Last operation that the answer contains or could have contained."""
    more: bool
    """Whether there are operations after the position."""
    rows_behind: int = 0
    """Number of rows in the remaining operations, matching or not."""


def groups_after(
    tails: Sequence[BufferTail],
    after: Position,
    now: Position,
    limit: int = ANSWER_BYTES,
    whole_before: Position | None = None,
) -> Groups:
    """Choose the operations after ``after``, up to ``now``, for one answer.

    Args:
        tails: all buffers with such operations; per partition oldest first.
        whole_before: operations before this position are in the answer, whatever their size.
    """
    if not tails:
        return Groups((), max(after, now), False)
    if whole_before is not None:
        return _whole(tails, after, now, whole_before)
    epoch = min(tail.handle.epoch for tail in tails)
    own = [tail for tail in tails if tail.handle.epoch == epoch]
    after_seq = after.sequence if after.epoch == epoch else -1
    last = now.sequence if epoch == now.epoch else max(tail.last.sequence for tail in own)
    cut = _cut([_OperationSizes(tail.rows, after_seq, last, limit) for tail in own], last, limit)
    groups = []
    for handle, rows in own:
        span = rows.span(after_seq, cut)
        if span is not None:
            groups.append(LiveGroup(handle, rows.row_after(after_seq), rows.row_after(cut), *span))
    # In the order of their first operations: if a key moved between partitions, its newest row
    # comes last.
    groups.sort(key=lambda group: group.handle.first_seq)
    more = cut < last or len(own) < len(tails)
    if not more:
        return Groups(tuple(groups), max(after, now), False)
    behind = sum(rows.row_after(last) - rows.row_after(cut) for _, rows in own)
    behind += sum(tail.rows.rows for tail in tails if tail.handle.epoch != epoch)
    return Groups(tuple(groups), Position(epoch, cut), True, behind)


def _whole(tails: Sequence[BufferTail], after: Position, now: Position, before: Position) -> Groups:
    """Return everything before a position, at which an epoch begins."""
    groups = []
    for handle, rows in tails:
        after_seq = after.sequence if after.epoch == handle.epoch else -1
        span = rows.span(after_seq, handle.last_seq)
        if span is not None and handle.epoch < before.epoch:
            begin, end = rows.row_after(after_seq), rows.row_after(handle.last_seq)
            groups.append(LiveGroup(handle, begin, end, *span))
    groups.sort(key=lambda group: (group.handle.epoch, group.handle.first_seq))
    rest = [rows.rows for handle, rows in tails if handle.epoch >= before.epoch]
    if not rest:
        return Groups(tuple(groups), max(after, now), False)
    return Groups(tuple(groups), before, True, sum(rest))


class _OperationSizes:
    """Sizes of a buffer's operations after a sequence. Chunks beyond the limit are not counted."""

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
        """Size of all operations, or a size over the limit if they do not fit."""
        return self._bytes[-1]

    def upto(self, seq: int) -> float:
        """Return the size of the operations up to a sequence; rows of a chunk count as equal."""
        row = self._rows.row_after(seq)
        index = bisect_right(self._starts, row) - 1
        if index < 0:
            return 0.0
        if index == len(self._starts) - 1:
            return self._bytes[-1]
        share = (row - self._starts[index]) / (self._starts[index + 1] - self._starts[index])
        return self._bytes[index] + (self._bytes[index + 1] - self._bytes[index]) * share


def _cut(sizes: Sequence[_OperationSizes], last: int, limit: int) -> int:
    """Return the last sequence of the answer. It takes all operations that fit, at least one."""
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
