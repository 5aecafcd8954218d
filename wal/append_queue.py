"""Law: what waits is written, synced, applied and answered together, in one order.

::

    any thread       append ─▶ waiting ─┐
    who writes         (drafts become entries) form group ─▶ write + sync ─▶ book ─▶ on_stored ─┐
    loop                                             on_done ◀─ apply (`wal.apply_queue`) ◀────────┘

One thread writes at a time: the append thread, or one that appends while nobody does and would wait
anyway; it leaves what has come meanwhile to the append thread. There is no fixed delay: a group is
whatever waits when the one before it is through, and those who were answered with that one, if they
come back at once (:mod:`wal.commit_delay`). Who writes waits for the loop only where a group
has failed. Under "commit" nothing is applied or answered before its sync returned. Whoever appended
is answered exactly once, whatever becomes of the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import trio

from wal.append_thread import AppendThread
from wal.apply_queue import Apply, ApplyQueue
from wal.commit_delay import CommitDelay
from wal.entry import Draft, Entry
from wal.errors import LogClosed, LogError, LogFailed
from wal.group import Group, form_group, group_bytes
from wal.pending import Item, Make, PendingEntries, answer, end_lines, no_drafts, refusal_of
from wal.segments import SegmentSet


class AppendQueue:
    """The queue before the open segment, and the groups that are being written.

    Loop only, but for `append`. While a group is out, and until `release` after a `hold`, the open
    segment and its ledger are the thread's.

    Args:
        sync: whether a group is synced before it counts.
        attention: called when the queue is stuck, and after each group; must not raise.
    """

    def __init__(self, segments: SegmentSet, *, sync: bool, attention: Callable[[], None]) -> None:
        self._segments = segments
        self._sync = sync
        self._attention = attention
        # What several threads use: all of it under the lock.
        self._lock = threading.Lock()
        # Not bounded here: admission bounds the bytes in flight before they come this far.
        self._waiting = PendingEntries()
        self._company = CommitDelay(self._lock)
        self._groups: deque[Group] = deque()
        self._held = True
        self._failing = False
        self._asleep = True
        """Nobody writes."""
        self._closed = False
        self._thread: AppendThread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._make: Make = no_drafts
        self._at_rest = trio.Event()
        self.handover = ApplyQueue(self._on_loop, self._back)
        self.stuck = False
        """What waits needs another segment first."""
        self.failure: LogFailed | None = None
        """Nothing is begun any more. What was written counts, and is applied."""
        self.crash: BaseException | None = None
        """What ends the run: the disk's failure, or what a callback raised."""
        self.writing_bytes = 0
        self.failed_groups = 0

    @property
    def pending(self) -> int:
        """Entries and drafts that no group has taken yet."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        """What they take in the log. Any thread."""
        return self._waiting.nbytes

    @property
    def unbooked_bytes(self) -> int:
        """What waits for a group, and what is being written. Any thread."""
        return self._waiting.nbytes + self.writing_bytes

    @property
    def empty(self) -> bool:
        """Nothing waits, and everything that was written is answered."""
        with self._lock:
            return not (len(self._waiting) or self._groups)

    def append(self, item: Item, *, here: bool = False) -> None:
        """Queue it. Any thread. LogClosed after `shut`: it is not answered then.

        Args:
            here: if nobody writes now, the caller does, and returns when its group is written. It
                calls `tell` when it has done what it hurries to do.
        """
        with self._lock:
            if self._closed:
                raise LogClosed("the log is closed") from self.failure
            if (refusal := refusal_of(item)) is None:
                self._waiting.add(item)
                if here or (isinstance(item, Draft) and item.waits):
                    self._company.arrived(item.lines or item)
            ring = self._wakes()
        if refusal is not None:
            self._on_loop(self._answer_apart, (item,), refusal)
        if ring and here:
            self._write_here()
        elif ring:
            self._ring()

    def open(self, apply: Apply, make: Make | None = None) -> None:
        """Have a thread from now on, for groups to be handed to `apply`; still held."""

        def apply_and_note(entries: Sequence[Entry]) -> None:
            self._segments.note_written()
            apply(entries)

        self.handover.apply = apply_and_note
        self._make = make or self._make
        self._token = trio.lowlevel.current_trio_token()
        self._thread = AppendThread(self._write_groups)

    def shut(self) -> None:
        """Take nothing any more."""
        with self._lock:
            self._closed = True
            self._company.leave()

    async def close(self) -> None:
        """Begin no group any more; returns when the last one is answered and nobody writes."""
        await self.hold()
        while True:
            self._at_rest = trio.Event()
            with self._lock:
                if self._asleep:
                    break
            await self._at_rest.wait()
        if self._thread is not None:
            self._thread.end()

    async def hold(self) -> None:
        """Begin no group until `release`; returns when none is out."""
        with self._lock:
            self._held = True
            self._company.leave()
        while self._groups:
            # Also what nobody has told of: who wrote it may be busy with its answer for long.
            self.handover.catch_up()
            if self._groups:
                self._at_rest = trio.Event()
                await self._at_rest.wait()

    def release(self) -> None:
        """Go on with what waits."""
        with self._lock:
            self._held = self.stuck = False
            ring = self._wakes()
        if ring:
            self._ring()

    def answer_waiting(self, error: LogError) -> None:
        """Answer everyone whose entry is in no group yet."""
        answer(self._take_waiting(error), error)

    def _take_waiting(self, error: LogError) -> list[Item]:
        with self._lock:
            return self._waiting.take(error)

    def _wakes(self) -> bool:
        """Under the lock: whether the thread has to be woken now, by who asks."""
        if not (self._asleep and self._may_write()):
            return False
        self._asleep = False
        return True

    def _may_write(self) -> bool:
        return self._waiting.waits and not (self._held or self._failing or self.stuck)

    def _ring(self) -> None:
        assert self._thread is not None
        self._thread.ring()

    def _on_loop(self, call: Callable[..., object], *args: object) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):  # nobody is left to be told
            self._token.run_sync_soon(call, *args)

    # Who writes

    def _write_groups(self) -> None:
        """In the append thread."""
        self.handover.thread_writes = True
        while self._write_next():
            with self._lock:
                if not (self._held or self._closed or self._waiting.ready):
                    self._company.wait()
        # Cleared before it looks: whoever finds it set need not tell.
        self.handover.thread_writes = False
        self.handover.tell()

    def _write_here(self) -> None:
        """In a thread that found nobody writing: one group, then the append thread goes on."""
        if not self._write_next():
            return
        with self._lock:
            goes_on = self._may_write()
            if not goes_on:
                self._rest()
        if goes_on:
            self._ring()

    def _write_next(self) -> bool:
        """Write what waits; whether there was something. False: nobody writes any more."""
        try:
            group = self._next_group()
            if group is not None:
                self._write(group)
        except BaseException as exc:
            self._on_loop(self._lose, exc)
            return False
        return group is not None

    def _next_group(self) -> Group | None:
        while True:
            with self._lock:
                if not self._may_write():
                    self._rest()
                    return None
                if not self._waiting.draw():
                    return self._form_group()
                # Who comes from now on is in the group behind this one.
                self._company.went()
            # Whatever came while the last group was written becomes as few entries as it can.
            self._waiting.make(self._make)
            with self._lock:
                refused, error = self._waiting.end()
            if refused:
                self._on_loop(self._answer_apart, refused, error)

    def _rest(self) -> None:
        """Under the lock: who writes leaves it to the next one."""
        self._asleep = True
        if self._held or self._closed:
            self._on_loop(self._rested)

    def _form_group(self) -> Group | None:
        """Under the lock."""
        segment = self._segments.open
        most = group_bytes(self._waiting.nbytes, self._segments.last_sync_s if self._sync else 0.0)
        group = None if segment is None else form_group(self._waiting.ready, segment.ledger, most)
        if group is None or not group.entries:
            self.stuck = True
            self._rest()
            self._on_loop(self._attention)
            return None
        # From here until it is answered, it is this queue that answers for the group.
        self._groups.append(group)
        self.writing_bytes = group.end - group.start
        self._waiting.nbytes -= sum(entry.stored_bytes for entry in group.entries)
        return group

    def _write(self, group: Group) -> None:
        try:
            self._segments.write(group, sync=self._sync)
        except LogError as exc:
            with self._lock:
                # Until the loop has answered for it, nothing is written behind it.
                self._failing = True
                end_lines(group.entries, exc)
                self.writing_bytes = 0
            self.handover.came_back(group, exc)
            self.handover.tell_now()
            return
        with self._lock:
            self._segments.book(group, synced=self._sync)
            self.writing_bytes = 0
        # Before anyone hears of it.
        self.handover.came_back(group, None)
        for entry in group.entries:
            if entry.on_stored is not None:
                entry.on_stored(entry)
        self.handover.tell_if_due(group)

    # The loop

    def _back(self, group: Group, error: LogError | None) -> None:
        """A group came back: apply and answer it."""
        try:
            if error is None:
                self.handover.hand_on(group)
            else:
                self._fail(group, error)
        except BaseException as exc:
            self.failure = self.handover.parted or self.failure
            self._break(exc)
        self._groups.popleft()
        if not self._groups:
            self._at_rest.set()
        self._attention()

    def _answer_apart(self, items: Iterable[Item], error: LogError | None) -> None:
        """Answer what comes into no group, with its line's refusal where there is no other."""
        try:
            for item in items:
                answer((item,), error or refusal_of(item))
        except BaseException as exc:
            self._break(exc)

    def _fail(self, group: Group, error: LogError) -> None:
        """Answer a group that failed, and who waited behind it; go on if the disk can be trusted.

        Nobody's later entry may stand where an earlier one of theirs was refused.
        """
        self.failed_groups += 1
        if isinstance(error, LogFailed):
            answer(group.entries, error)
            raise error
        answer((*group.entries, *self._take_waiting(error)), error)
        with self._lock:
            self._failing = False
            ring = self._wakes()
        if ring:
            self._ring()

    def _lose(self, exc: BaseException) -> None:
        """The thread ended in the middle of a group: it may be in the log, or not."""
        self.handover.catch_up()
        failure = self.failure = LogFailed(f"the log's own thread failed: {exc!r}")
        lost: list[Item] = [entry for group in self._groups for entry in group.entries]
        with self._lock:
            lost += self._waiting.lost()
            self._asleep = True
        self._groups.clear()
        self._at_rest.set()
        self._break(exc)
        with suppress(Exception):  # the run ends with what came first
            answer(lost, failure)

    def _rested(self) -> None:
        """Nobody writes, and somebody waits for that."""
        self.handover.catch_up()
        self._at_rest.set()
        self._attention()

    def _break(self, exc: BaseException) -> None:
        """Write nothing any more: the run ends with `exc`."""
        self.crash = self.crash or exc
        with self._lock:
            self._held = True
        self._attention()
