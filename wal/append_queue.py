"""Law: what waits is written, synced, applied and answered together, in one order.

::

    append -> pending -> [form group] -> write + sync (thread) -> apply -> on_done
                 ^                            |
                 +---- the next group forms --+

There is no delay: a group is whatever waits when the one before it is through. One group is on its
way at a time, in callbacks of the loop: a task would cost another round of the loop at each end.
Under "commit" nothing is applied or answered before its sync returned. Whoever appended is answered
exactly once, whatever becomes of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from wal.append_thread import AppendThread
from wal.entry import Entry
from wal.errors import LogError, LogFailed
from wal.group import Group, form_group
from wal.segments import SegmentSet

Apply = Callable[[Sequence[Entry]], None]


class AppendQueue:
    """The queue before the open segment, and the group that is being written. Loop only.

    Args:
        sync: whether a group is synced before it counts.
        due: whether something has to be done before the next group begins.
        attention: called when something is due, when the queue is stuck, and when a group has ended
            with nothing behind it; must not raise.
    """

    def __init__(
        self,
        segments: SegmentSet,
        *,
        sync: bool,
        due: Callable[[], bool],
        attention: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._sync = sync
        self._due = due
        self._attention = attention
        # Not bounded here: admission bounds the bytes in flight before they come this far.
        self._pending: deque[Entry] = deque()
        self._group: Group | None = None
        self._thread: AppendThread | None = None
        self._apply: Apply = lambda entries: None
        self._held = True
        self._writing = False
        self._at_rest = trio.Event()
        self.stuck = False
        """What waits needs another segment first."""
        self.failure: LogFailed | None = None
        """Groups that come back from now on are answered with it and not applied."""
        self.crash: BaseException | None = None
        """What ends the run: the disk's failure, or what a callback raised."""
        self.pending_bytes = 0
        self.groups = 0
        self.records = 0
        self.failed_groups = 0

    @property
    def pending(self) -> int:
        """Entries that no group has taken yet."""
        return len(self._pending)

    @property
    def unbooked_bytes(self) -> int:
        """What waits for a group, and what is being written."""
        group = self._group
        return self.pending_bytes + (0 if group is None else group.end - group.start)

    @property
    def empty(self) -> bool:
        """Nothing waits, and nothing is being written."""
        return not (self._pending or self._writing)

    def append(self, entry: Entry) -> None:
        """Queue an entry."""
        self._pending.append(entry)
        self.pending_bytes += entry.stored_bytes
        self._next()

    def open(self, apply: Apply) -> None:
        """Have a thread from now on, for groups to be handed to `apply`; still held."""
        self._apply = apply
        self._thread = AppendThread()

    async def close(self) -> None:
        """Begin no group any more; returns when the last one has been answered."""
        await self.hold()
        if self._thread is not None:
            self._thread.end()

    async def hold(self) -> None:
        """Begin no group until `release`; returns when none is being written."""
        self._held = True
        while self._writing:
            self._at_rest = trio.Event()
            await self._at_rest.wait()

    def release(self) -> None:
        """Go on with what waits."""
        self._held = self.stuck = False
        self._next()

    def answer_waiting(self, error: LogError) -> None:
        """Answer everyone whose entry is in no group yet."""
        waiting, self._pending = self._pending, deque()
        self.pending_bytes = 0
        _answer(waiting, error)

    def answer_everyone(self, error: LogError) -> None:
        """Answer everyone who has not been answered."""
        try:
            self._answer_group(error)
        finally:
            self.answer_waiting(error)

    def _next(self) -> None:
        """Begin the next group, if there is to be one and nothing is in its way."""
        if self._held or self._writing or self.stuck or not self._pending:
            return
        if self._due():
            self._attention()
            return
        segment = self._segments.open
        # From here until it is answered, it is this queue that answers for the group.
        group = None if segment is None else form_group(self._pending, segment.ledger)
        if segment is None or group is None or not group.entries:
            self.stuck = True
            self._attention()
            return
        self._group = group
        self.pending_bytes -= sum(entry.stored_bytes for entry in group.entries)
        self._writing = True
        assert self._thread is not None
        self._thread.do(
            partial(self._segments.write, segment, group, sync=self._sync), self._written
        )

    def _written(self, raised: BaseException | None) -> None:
        """A group's thread is back: apply and answer it, and begin the next one."""
        try:
            self._end_group(raised)
        except BaseException as exc:
            self.crash = self.crash or exc
            self._held = True
        self._writing = False
        self._at_rest.set()
        self._next()
        if not self._writing:
            self._attention()

    def _end_group(self, raised: BaseException | None) -> None:
        if isinstance(raised, LogError):
            self.failed_groups += 1
            self._answer_group(raised)
            if isinstance(raised, LogFailed):
                raise raised
            # Nobody's later entry may stand where an earlier one of theirs was refused.
            self.answer_waiting(raised)
            return
        if raised is not None:
            raise raised
        group = self._group
        assert group is not None
        self._segments.book(group, synced=self._sync)
        if self.failure is not None:
            self._answer_group(self.failure)
        else:
            self._hand_on(group)

    def _hand_on(self, group: Group) -> None:
        """Hand a group on and answer it. Atomic: no await, so that log order is the only order."""
        try:
            self._apply(group.entries)
        except Exception as exc:
            # The log holds what the sink refuses: only a restart can make them agree again.
            failure = LogFailed(f"the sink refused what the log already holds: {exc!r}")
            self._answer_group(failure)
            raise failure from exc
        self.groups += 1
        self.records += len(group.records)
        self._answer_group(None)

    def _answer_group(self, error: LogError | None) -> None:
        group, self._group = self._group, None
        if group is not None:
            _answer(group.entries, error)


def _answer(entries: Iterable[Entry], error: LogError | None) -> None:
    """Answer every entry; the first exception that a callback raised comes out afterwards."""
    raised: Exception | None = None
    for entry in entries:
        if entry.on_done is not None:
            try:
                entry.on_done(entry, error)
            except Exception as exc:
                raised = raised or exc
    if raised is not None:
        raise raised
