"""What a table has for its followers: its buffers, and for a while those that were let go.

    release ─▶ kept, while somebody follows ─▶ gone: after ``query.tail_retain``, or for room

Law of this file: the loop changes what is kept, under the table's lock; whoever takes a snapshot
holds it. A buffer that is released is kept or gone from then on, never neither. Rows that are kept
are in files, too: they may go at any time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ingester.buffer import BufferedRows, BufferHandle, BufferTree, TableBuffer
from ingester.query.live_groups import ANSWER_BYTES, Group, Tail, groups_after
from ingester.query.live_position import NO_VERSION, Gone, GoneOperations, LogPast, Position
from ingester.query.snapshot import Snapshot

LIVE_BYTES = 128 << 20
"""The most bytes of released buffers that are kept for followers; less where memory is small."""


@dataclass(slots=True)
class LiveSnapshot(Snapshot):
    """What a follower's answer has: groups of buffered rows, up to a position."""

    position: Position = field(default=Position(-1, -1))
    more: bool = False
    rows_behind: int = 0
    groups: tuple[Group, ...] = ()


class Kept(NamedTuple):
    """A released buffer's rows."""

    table: TableBuffer
    rows: BufferedRows
    version: int
    """The version whose files have them."""
    until: float


@dataclass(slots=True, eq=False)
class TableTail:
    """What is known of one table's released buffers."""

    opened_at: int
    """The version that the table was opened with, or switched to."""
    table_version: int = 1
    gone: GoneOperations = field(default_factory=GoneOperations)
    kept: OrderedDict[BufferHandle, Kept] = field(default_factory=OrderedDict)
    taken_back: Gone | None = None
    """The newest operation when rows that had been shown were left to another daemon, and the
    version that did."""
    followed_until: float = 0.0
    """Until then, on the monotonic clock, released buffers are kept."""


class LiveTails:
    """The released buffers of all tables. Loop only, but for what says otherwise.

    Args:
        past: what is known of operations by their epochs.
        retain_s: how long rows are kept, and how long after its last call somebody follows.
        retain_bytes: the most bytes that are kept, of all tables together.
    """

    def __init__(
        self, tree: BufferTree, past: LogPast, *, retain_s: float, retain_bytes: int
    ) -> None:
        self.past = past
        self.nbytes = 0
        """The bytes of the rows that are kept."""
        self._tree = tree
        self._retain_s = retain_s
        self._retain_bytes = retain_bytes
        self._tails: dict[TableBuffer, TableTail] = {}
        self._kept: OrderedDict[BufferHandle, Kept] = OrderedDict()
        """What is kept of all tables, the oldest first."""

    def now(self) -> Position:
        """The position of the last operation that was applied. Any thread."""
        return Position(self.past.epoch, self._tree.applied_seq)

    def opened(self, table: TableBuffer) -> None:
        """Take note of a table: what earlier incarnations have put into its files is gone."""
        own, state = self.past.ingester_id, table.state
        if (known := self._tails.get(table)) is not None:
            if known.table_version == state.table_version:
                return
            # Versions are others from here on: a follower begins anew with those.
            for handle in list(known.kept):
                self._let_go(handle)
        tail = TableTail(state.version, state.table_version)
        if known is not None:
            tail.followed_until = known.followed_until
        self._tails[table] = tail
        applied = [
            Position(epoch, seq) for (id_, epoch, _, _), seq in state.applied.items() if id_ == own
        ]
        if applied:
            tail.gone.note(max(applied), state.version)
        # Adopted: what the log had is in files, but for what went on at other daemons.
        adopted = [epoch for id_, epoch in state.epochs_complete if id_ == own]
        table.dropped_epoch = max(table.dropped_epoch, *adopted, -1)

    def followed(self, table: TableBuffer) -> None:
        """Take note that somebody follows the table now."""
        self._tails[table].followed_until = time.monotonic() + self._retain_s

    def released(self, table: TableBuffer, handle: BufferHandle) -> None:
        """Keep a buffer's rows, or note that they are gone. Under the table's lock."""
        tail, now = self._tails[table], time.monotonic()
        if handle.taken_back:
            tail.taken_back = Gone(self.now(), table.state.version)
        if tail.followed_until <= now or handle.taken_back:
            tail.gone.note(Position(handle.epoch, handle.last_seq), table.state.version)
            return
        kept = Kept(table, handle.rows, table.state.version, now + self._retain_s)
        self._kept[handle] = tail.kept[handle] = kept
        self.nbytes += kept.rows.nbytes
        while self.nbytes > self._retain_bytes:
            self._let_go(next(iter(self._kept)))

    def sweep(self) -> bool:
        """Let go of what was kept long enough; whether anything is kept, or is going to be."""
        now = time.monotonic()
        self._let_go_while(lambda kept: kept.until <= now)
        return bool(self._kept) or any(t.followed_until > now for t in self._tails.values())

    def shrink(self) -> None:
        """Let go of everything that is kept: memory is short."""
        self._let_go_while(lambda kept: True)

    def rows(self, handle: BufferHandle) -> BufferedRows | None:
        """The rows of a buffer, released or not; None where they are gone. Any thread."""
        rows = handle.rows
        if not handle.released:
            return rows
        kept = self._kept.get(handle)
        return None if kept is None else kept.rows

    def missing(self, table: TableBuffer, after: Position, version: int) -> Gone | None:
        """Something behind a position that is gone, and not in the version's files. Any thread."""
        with table.lock:
            return self._tails[table].gone.behind(after, version)

    def were_taken_back(self, table: TableBuffer, after: Position, told: int) -> bool:
        """Whether rows that a follower has may have been taken back. Any thread.

        Args:
            told: the version that the follower was told last; :data:`NO_VERSION` if it is unknown.
        """
        if after.epoch <= table.dropped_epoch:
            return True
        by = self._tails[table].taken_back
        if by is None:
            return False
        return after <= by.last if told == NO_VERSION else told < by.version

    def opened_at(self, table: TableBuffer) -> int:
        """The version that the table was opened with, at the start or later."""
        return self._tails[table].opened_at

    def snapshot(
        self,
        table: TableBuffer,
        after: Position | None,
        version: int,
        limit: int = ANSWER_BYTES,
    ) -> LiveSnapshot | Gone:
        """Take what is behind a position and not in the version's files. Any thread.

        Args:
            after: None for the position of now.
            limit: the bytes of an answer.
        """
        with table.lock:
            upto, state, definition = self.now(), table.state, table.definition
            after = upto if after is None else after
            tail = self._tails[table]
            if tail.table_version != state.table_version:
                # It is being switched at this moment, perhaps to other columns.
                return Gone(upto, state.version)
            gone = tail.gone.behind(after, version)
            if gone is not None:
                return gone
            # Only what is needed: the loop may be waiting for the lock.
            tails = [
                Tail(handle, kept.rows)
                for handle, kept in tail.kept.items()
                if kept.version > version and (handle.epoch, handle.last_seq) > after
            ]
            if table.newest > after:
                tails += [
                    Tail(handle, handle.rows)
                    for handle in table.handles()
                    if (handle.epoch, handle.last_seq) > after
                ]
        found = groups_after(tails, after, upto, limit)
        return LiveSnapshot(
            definition=definition,
            version=state.version,
            sequence=upto.sequence,
            files=(),
            pins={},
            table_version=state.table_version,
            position=found.position,
            more=found.more,
            rows_behind=found.rows_behind,
            groups=found.groups,
        )

    def _let_go_while(self, condition: Callable[[Kept], bool]) -> None:
        while self._kept:
            handle, kept = next(iter(self._kept.items()))
            if not condition(kept):
                return
            self._let_go(handle)

    def _let_go(self, handle: BufferHandle) -> None:
        kept = self._kept.pop(handle)
        self.nbytes -= kept.rows.nbytes
        tail = self._tails[kept.table]
        with kept.table.lock:
            del tail.kept[handle]
            tail.gone.note(Position(handle.epoch, handle.last_seq), kept.version)
