"""The queue of the log: entries and drafts in one order, written by one thread at a time.

::

    append ─▶ queued ─▶ drawn, while drafts become entries ─▶ ready ─▶ group (`wal.group_writer`)

The writer is idle, or it is a thread that writes until nothing is pending or the gate closes. Each
call that could open the gate or add work returns whether the writer must be woken; exactly one
caller is told so.

There is no fixed delay. A group takes what is pending when the previous group is written, and the
callers of that group if they return at once (`wal.commit_delay`). It ends after 1.25 to 16 MiB
(`group_bytes`) or at the end of the segment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import groupby
from typing import Protocol, cast

from wal.commit_delay import CommitDelay
from wal.entry import Draft, Entry
from wal.errors import LogClosed, LogError
from wal.group import LogGroup, form_group, group_bytes
from wal.segments import SegmentSet

Item = Entry | Draft
Make = Callable[[list[Draft]], list[Entry]]
"""Makes entries of drafts in the thread that calls it. It must not raise."""


class PendingEntries:
    """Entries and drafts that are in no group yet. Under the queue's lock, except `make`."""

    def __init__(self) -> None:
        self.ready: deque[Entry] = deque()
        """The entries that the next group is formed of."""
        self.nbytes = 0
        self._queued: deque[Item] = deque()
        self._drawn: list[Item] = []
        self._drawn_bytes = 0
        self._made: list[Entry] = []
        self._refused: list[Item] = []
        self._refusal: LogError | None = None

    def __len__(self) -> int:
        return len(self.ready) + len(self._queued) + len(self._drawn)

    @property
    def waits(self) -> bool:
        """Whether the next group would have entries."""
        return bool(self.ready or self._queued)

    def add(self, item: Item) -> None:
        """Append an item."""
        self._queued.append(item)
        self.nbytes += item.stored_bytes

    def draw(self) -> bool:
        """Draw all queued items; False if there are none. After True, call `make` and `end`."""
        if self.ready or not self._queued:
            return False
        self._drawn_bytes = self.nbytes  # nothing else is pending
        self._drawn = list(self._queued)
        self._queued.clear()
        return True

    def make(self, make: Make) -> None:
        """Make entries of the drawn items. Called without the lock because it takes time."""
        for kind, items in groupby(self._drawn, type):
            if issubclass(kind, Draft):
                self._made += make(cast(list[Draft], list(items)))
                continue
            for item in cast(Iterable[Entry], items):
                # Checked only here: a draft of its session may have been refused just before.
                if refusal_of(item) is None:
                    self._made.append(item)
                else:
                    self._refused.append(item)

    def end(self) -> tuple[list[Item], LogError | None]:
        """End the draw; return the refused items, and the error unless it is their session's."""
        made, self._made = self._made, []
        refused, self._refused = self._refused, []
        self.nbytes -= self._drawn_bytes
        self._drawn = []
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            end_sessions(made, refusal)
            return [*made, *refused], refusal
        self.ready.extend(made)
        self.nbytes += sum(entry.stored_bytes for entry in made)
        return refused, None

    def take(self, error: LogError) -> list[Item]:
        """Remove and return all items, to be refused. Drawn items are refused in `end`."""
        taken = [*self.ready, *self._queued]
        self.ready.clear()
        self._queued.clear()
        self.nbytes -= sum(item.stored_bytes for item in taken)
        end_sessions(taken, error)
        if self._drawn:
            end_sessions(self._drawn, error)
            self._refusal = error
        return taken

    def lost(self) -> list[Item]:
        """Return the items that a dead thread had drawn."""
        lost, self._drawn, self._made = self._drawn, [], []
        return lost


def refusal_of(item: Item) -> LogError | None:
    """The error that ended one of the item's sessions, or None."""
    for session in item.sessions:
        if session.refusal is not None:
            return session.refusal
    return None


def end_sessions(items: Iterable[Item], error: LogError) -> None:
    """End the sessions of these items: nothing of theirs may follow in the log."""
    for item in items:
        for session in item.sessions:
            session.refusal = session.refusal or error


def no_drafts(drafts: list[Draft]) -> list[Entry]:
    """Refuse drafts in a log that takes only entries."""
    raise RuntimeError(f"{len(drafts)} drafts were appended to a log without a make function")


def answer(items: Iterable[Item], error: LogError | None) -> None:
    """Answer all items; then raise the first exception that a callback raised."""
    raised: Exception | None = None
    for item in items:
        try:
            item.answer(error)
        except Exception as exc:
            raised = raised or exc
    if raised is not None:
        raise raised


class OnLoop(Protocol):
    """Events in threads that are handled on the loop, soon and in order."""

    def refused(self, items: Iterable[Item], error: LogError | None) -> None:
        """Items enter no group because of the error, or without one because of their sessions'
        refusal.
        """

    def attention(self) -> None:
        """The queue is stuck until another segment is open."""

    def rested(self) -> None:
        """The writer is idle, and the loop waits for that."""

    def lost(self, exc: BaseException) -> None:
        """The writer died of `exc`; the log may or may not hold what it had drawn."""


class Gate(Enum):
    """Whether the writer may form the next group; only if the gate is open."""

    OPEN = "open"
    STUCK = "stuck"
    """The open segment has no room for what is pending."""
    FAILED = "failed"
    """A group failed, and the loop has not answered it yet."""
    HELD = "held"
    """The loop works between two groups. A group that is being written may still fail."""
    HELD_STUCK = "held and stuck"
    HELD_FAILED = "held and failed"


# Names of the module, because looking up a member of an enum runs Python code.
OPEN, STUCK, FAILED, HELD, HELD_STUCK, HELD_FAILED = Gate

TRANSITIONS: dict[str, dict[Gate, Gate]] = {
    "stick": {OPEN: STUCK},
    "fail": {OPEN: FAILED, HELD: HELD_FAILED},
    "resume": {FAILED: OPEN, HELD_FAILED: HELD},
    "hold": {
        OPEN: HELD,
        STUCK: HELD_STUCK,
        FAILED: HELD_FAILED,
        HELD: HELD,
        HELD_STUCK: HELD_STUCK,
        HELD_FAILED: HELD_FAILED,
    },
    # Only after a hold has seen every group answered, so never from HELD_FAILED.
    "release": {HELD: OPEN, HELD_STUCK: OPEN},
}


class AppendQueue:
    """The queue before the open segment, and the groups that are not answered yet. Any thread.

    Args:
        sync: whether a group is synced before it counts as written.
    """

    def __init__(self, segments: SegmentSet, on_loop: OnLoop, *, sync: bool) -> None:
        self._segments = segments
        self._on_loop = on_loop
        self._sync = sync
        # Everything below is used by several threads: all of it under the lock.
        self._lock = threading.Lock()
        self.pending = PendingEntries()
        """Any thread may read its numbers. It has no bound: admission limits the bytes in flight.
        """
        self._delay = CommitDelay(self._lock)
        self.groups: deque[LogGroup] = deque()
        """Groups in flight. The loop removes them as it answers them, without the lock."""
        self._gate = HELD
        self._idle = True
        """Whether no thread writes, whatever the gate."""
        self._closed = False
        self._closed_by: LogError | None = None
        self._writing_bytes = 0

    @property
    def unbooked_bytes(self) -> int:
        """The bytes that are pending or being written."""
        return self.pending.nbytes + self._writing_bytes

    @property
    def empty(self) -> bool:
        """Whether nothing is pending and every group is answered."""
        with self._lock:
            return not (len(self.pending) or self.groups)

    @property
    def stuck(self) -> bool:
        """Whether the open segment has no room for what is pending. Any thread."""
        return self._gate is STUCK or self._gate is HELD_STUCK

    @property
    def idle(self) -> bool:
        """Whether no thread writes."""
        with self._lock:
            return self._idle

    def append(self, item: Item, *, here: bool) -> bool:
        """Queue `item`; return whether the caller must write it or wake the writer.

        Args:
            here: the caller appends nothing more before the answer.

        Raises:
            LogClosed: after `shut`; the item is not answered.
        """
        with self._lock:
            if self._closed:
                raise LogClosed("the log is closed") from self._closed_by
            if (refusal := refusal_of(item)) is None:
                self.pending.add(item)
                if here or (isinstance(item, Draft) and item.waits):
                    self._delay.arrived(item.sessions or item)
            wakes = self._wakes()
        if refusal is not None:
            self._on_loop.refused((item,), refusal)
        return wakes

    def shut(self, error: LogError | None) -> None:
        """Refuse all later items, because of `error` if given."""
        with self._lock:
            self._closed = True
            self._closed_by = self._closed_by or error
            self._delay.leave()

    def hold(self) -> None:
        """Stop the writer from forming groups until `release`."""
        with self._lock:
            self._turn("hold")
            self._delay.leave()

    def release(self) -> bool:
        """Let the writer form groups; return whether it must be woken."""
        with self._lock:
            self._turn("release")
            return self._wakes()

    def resume(self) -> bool:
        """Allow groups after a failed one is answered; return whether the writer must be woken."""
        with self._lock:
            self._turn("resume")
            return self._wakes()

    def take_pending(self, error: LogError) -> list[Item]:
        """Remove and return the items that are in no group, to be answered with `error`."""
        with self._lock:
            return self.pending.take(error)

    def take_lost(self) -> list[Item]:
        """Remove and return the items that a dead writer had drawn or was writing."""
        with self._lock:
            lost: list[Item] = [entry for group in self.groups for entry in group.entries]
            lost += self.pending.lost()
            self.groups.clear()
            self._idle = True
        return lost

    # The writer

    def next_group(self, make: Make) -> LogGroup | None:
        """Form the next group, with entries made of drafts; None if the caller must stop."""
        while True:
            with self._lock:
                if not self._may_write():
                    self._rest()
                    return None
                if self.pending.ready or not self.pending.draw():
                    return self._form_group()
                # Callers that arrive after this are in the following group.
                self._delay.group_drawn()
            # All drafts that arrived during the last write become few entries.
            self.pending.make(make)
            with self._lock:
                refused, error = self.pending.end()
            if refused:
                self._on_loop.refused(refused, error)

    def written(self, group: LogGroup) -> None:
        """Count a group that stands in the open segment."""
        with self._lock:
            self._segments.book(group, synced=self._sync)
            self._writing_bytes = 0

    def failed(self, group: LogGroup, error: LogError) -> None:
        """Form no group after a failed one until the loop has answered it and calls `resume`."""
        with self._lock:
            self._turn("fail")
            end_sessions(group.entries, error)
            self._writing_bytes = 0

    def await_callers(self) -> None:
        """Wait before the next group for the callers that were answered with the last one."""
        with self._lock:
            if not (self._is_held or self._closed or self.pending.ready):
                self._delay.wait()

    def leave_rest(self) -> bool:
        """End the caller's writing; return whether it must wake the writer for the rest."""
        with self._lock:
            has_rest = self._may_write()
            if not has_rest:
                self._rest()
        return has_rest

    # Under the lock

    def _wakes(self) -> bool:
        if not (self._idle and self._may_write()):
            return False
        self._idle = False
        return True

    def _may_write(self) -> bool:
        return self._gate is OPEN and self.pending.waits

    @property
    def _is_held(self) -> bool:
        return self._gate in (HELD, HELD_STUCK, HELD_FAILED)

    def _turn(self, event: str) -> None:
        state = TRANSITIONS[event].get(self._gate)
        if state is None:
            raise RuntimeError(f"{event} of a queue that is {self._gate.value}")
        self._gate = state

    def _rest(self) -> None:
        self._idle = True
        if self._is_held or self._closed:
            self._on_loop.rested()

    def _form_group(self) -> LogGroup | None:
        segment = self._segments.open
        most = group_bytes(self.pending.nbytes, self._segments.last_sync_s if self._sync else 0.0)
        group = None if segment is None else form_group(self.pending.ready, segment.fill, most)
        if group is None or not group.entries:
            self._turn("stick")
            self._rest()
            self._on_loop.attention()
            return None
        # Invariant: a group is in flight from here until the loop has answered it.
        self.groups.append(group)
        self._writing_bytes = group.end - group.start
        self.pending.nbytes -= sum(entry.stored_bytes for entry in group.entries)
        return group
