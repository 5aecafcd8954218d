"""Law: pending entries keep their order, from the append to their group or their refusal.

::

    append ─▶ queued ─▶ drawn, while drafts are made into entries ─▶ ready ─▶ group

All of it is the queue's, under the queue's lock, but for `make`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Protocol, cast

from wal.commit_delay import CommitDelay
from wal.entry import Draft, Entry
from wal.errors import LogClosed, LogError
from wal.group import Group, form_group, group_bytes
from wal.segments import SegmentSet

Item = Entry | Draft
Make = Callable[[list[Draft]], list[Entry]]
"""Makes entries of drafts, in the thread that calls it; must not raise."""


class PendingEntries:
    """Entries and drafts that no group has taken yet."""

    def __init__(self) -> None:
        self.ready: deque[Entry] = deque()
        """The entries that the next group is formed from."""
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
        """Whether there is something for the next group."""
        return bool(self.ready or self._queued)

    def add(self, item: Item) -> None:
        """Put an item behind all that is queued."""
        self._queued.append(item)
        self.nbytes += item.stored_bytes

    def draw(self) -> bool:
        """Draw what is queued; False where nothing is. After True come `make` and `end`."""
        if self.ready or not self._queued:
            return False
        self._drawn_bytes = self.nbytes  # nothing else is pending now
        self._drawn = list(self._queued)
        self._queued.clear()
        return True

    def make(self, make: Make) -> None:
        """Make entries of what was drawn. Without the lock: this is what takes time."""
        for kind, items in groupby(self._drawn, type):
            if issubclass(kind, Draft):
                self._made += make(cast(list[Draft], list(items)))
                continue
            for item in cast(Iterable[Entry], items):
                # Not before: a draft of its session may have been refused just now.
                if refusal_of(item) is None:
                    self._made.append(item)
                else:
                    self._refused.append(item)

    def end(self) -> tuple[list[Item], LogError | None]:
        """End the draw; return the items refused in it, and the error if it is no session's."""
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
        """Remove and return all items, to be refused; those in the making are refused later."""
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
        """The items that were drawn by a thread that is no more."""
        lost, self._drawn, self._made = self._drawn, [], []
        return lost


def refusal_of(item: Item) -> LogError | None:
    """The error that ended one of the item's sessions; None where all go on."""
    for session in item.sessions:
        if session.refusal is not None:
            return session.refusal
    return None


def end_sessions(items: Iterable[Item], error: LogError) -> None:
    """End the sessions of these items: nothing may stand behind them."""
    for item in items:
        for session in item.sessions:
            session.refusal = session.refusal or error


def no_drafts(drafts: list[Draft]) -> list[Entry]:
    """Refuse drafts, in a log that takes entries only."""
    raise RuntimeError(f"{len(drafts)} drafts in a log that was not told what to make of them")


def answer(items: Iterable[Item], error: LogError | None) -> None:
    """Answer everyone; the first exception that a callback raised comes out afterwards."""
    raised: Exception | None = None
    for item in items:
        try:
            item.answer(error)
        except Exception as exc:
            raised = raised or exc
    if raised is not None:
        raise raised


class OnLoop(Protocol):
    """The events that happen in threads and are handled on the loop, soon and in their order."""

    def refused(self, items: Iterable[Item], error: LogError | None) -> None:
        """Items come into no group: for the error or, without one, for their sessions' refusal."""

    def attention(self) -> None:
        """The queue is stuck until another segment is open."""

    def rested(self) -> None:
        """The writer is idle, and somebody waits for that."""

    def lost(self, exc: BaseException) -> None:
        """The writer died of `exc`; what it had drawn is in the log, or not."""


class AppendQueue:
    """The queue before the open segment, and the groups that no one has answered yet. Any thread.

    Args:
        sync: whether a group is synced before it counts.
    """

    def __init__(self, segments: SegmentSet, on_loop: OnLoop, *, sync: bool) -> None:
        self._segments = segments
        self._on_loop = on_loop
        self._sync = sync
        # Everything below is used by several threads: all of it under the lock.
        self._lock = threading.Lock()
        self.pending = PendingEntries()
        """The items in no group yet; any thread may read their numbers. They have no bound here:
        admission bounds the bytes in flight before they come this far."""
        self._delay = CommitDelay(self._lock)
        self.groups: deque[Group] = deque()
        """The groups in flight; the loop takes them off as it answers them, without the lock."""
        self._idle = True
        self._held = True
        self._failing = False
        self._closed = False
        self._closed_by: LogError | None = None
        self.stuck = False
        """The open segment has no room for what is pending."""
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
    def idle(self) -> bool:
        """Whether nobody writes."""
        with self._lock:
            return self._idle

    def append(self, item: Item, *, here: bool) -> bool:
        """Queue `item`; return whether the caller has to write it, or to wake the writer.

        Args:
            here: the caller appends nothing more before it is answered.

        Raises:
            LogClosed: after `shut`; the item is not answered then.
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
        """Refuse all items from now on, because of `error` if there is one."""
        with self._lock:
            self._closed = True
            self._closed_by = self._closed_by or error
            self._delay.leave()

    def hold(self) -> None:
        """Keep the writer from forming groups until `release`."""
        with self._lock:
            self._held = True
            self._delay.leave()

    def release(self) -> bool:
        """Release the queue and return whether the writer has to be woken."""
        with self._lock:
            self._held = self.stuck = False
            return self._wakes()

    def go_on(self) -> bool:
        """Allow groups again after a failed one; return whether the writer has to be woken."""
        with self._lock:
            self._failing = False
            return self._wakes()

    def take_pending(self, error: LogError) -> list[Item]:
        """Remove and return the items in no group yet, to be answered with `error`."""
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

    def next_group(self, make: Make) -> Group | None:
        """Form the next group, drafts made into entries; None where the caller must stop."""
        while True:
            with self._lock:
                if not self._may_write():
                    self._rest()
                    return None
                if self.pending.ready or not self.pending.draw():
                    return self._form_group()
                # Whoever comes from now on is in the group behind this one.
                self._delay.group_drawn()
            # Everything that came while the last group was written becomes few entries.
            self.pending.make(make)
            with self._lock:
                refused, error = self.pending.end()
            if refused:
                self._on_loop.refused(refused, error)

    def written(self, group: Group) -> None:
        """Count a group that stands in the open segment."""
        with self._lock:
            self._segments.book(group, synced=self._sync)
            self._writing_bytes = 0

    def failed(self, group: Group, error: LogError) -> None:
        """Write nothing behind a group that failed until `go_on`: the loop has to answer for it."""
        with self._lock:
            self._failing = True
            end_sessions(group.entries, error)
            self._writing_bytes = 0

    def await_callers(self) -> None:
        """Wait before the next group for the callers who were answered with the last one."""
        with self._lock:
            if not (self._held or self._closed or self.pending.ready):
                self._delay.wait()

    def leave_rest(self) -> bool:
        """Stop the caller's writing; return whether it has to wake the writer for what is left."""
        with self._lock:
            goes_on = self._may_write()
            if not goes_on:
                self._rest()
        return goes_on

    # Under the lock

    def _wakes(self) -> bool:
        if not (self._idle and self._may_write()):
            return False
        self._idle = False
        return True

    def _may_write(self) -> bool:
        return self.pending.waits and not (self._held or self._failing or self.stuck)

    def _rest(self) -> None:
        self._idle = True
        if self._held or self._closed:
            self._on_loop.rested()

    def _form_group(self) -> Group | None:
        segment = self._segments.open
        most = group_bytes(self.pending.nbytes, self._segments.last_sync_s if self._sync else 0.0)
        group = None if segment is None else form_group(self.pending.ready, segment.fill, most)
        if group is None or not group.entries:
            self.stuck = True
            self._rest()
            self._on_loop.attention()
            return None
        # Invariant: a group is in flight from here until the loop has answered it.
        self.groups.append(group)
        self._writing_bytes = group.end - group.start
        self.pending.nbytes -= sum(entry.stored_bytes for entry in group.entries)
        return group
