"""Writes groups, and hands them to the event loop, which applies and answers each once, in order.

::

    group ─▶ write + sync ─▶ book ─▶ apply queue ─▶ on_stored ─▶ the loop is told, if due ──┐
                 │   └ failed ─────▶ apply queue ──────────────▶ the loop is told ──────────┤
                 └ entries that ship ─▶ `Shipping` ─▶ in the store ─▶ apply queue ─▶ …  ────┤
    the loop                                                    apply ─▶ on_done ◀──────────┤
    a reader                                                    wait_settled ───────────────┘

One thread writes at a time. The log's own thread sleeps while nothing is pending. A thread that
appends while no thread writes, and would wait for the outcome anyway, writes one group itself and
leaves the rest to the log's thread. This saves two trips through the event loop per commit, which
take as long as a sync on a fast disk.

Waking the loop costs more than applying a group, and the thread that wakes it then waits for the
interpreter. While groups arrive the loop is not woken: it checks every `LOOK_AGAIN_S`. It is told
at once about many bytes, about a group whose appender is answered on the loop, and about each group
for some time after a reader has had to wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import trio

from wal.append_queue import AppendQueue, Make, OnLoop, answer, no_drafts
from wal.entry import Entry
from wal.errors import LogError, LogFailed
from wal.format import RecordKind
from wal.group import LogGroup
from wal.segments import SegmentSet
from wal.shipping import Shipping

Apply = Callable[[Sequence[Entry]], None]
Soon = Callable[[Callable[[], None]], None]

CATCH_UP_S = 0.5
"""The loop checks for groups after this time even if it is not woken."""
LOOK_AGAIN_S = 0.02
"""The period of the checks while groups arrive."""
_TURN = 16
"""Groups applied before other tasks on the loop get a turn."""
_MUCH_BYTES = 8 << 20
"""The loop is told at once of more bytes than this."""
AT_ONCE_S = 0.5
"""The loop is told of each group for this time after a reader had to wait."""
_LATER_GROUPS = 32
"""The loop is told at once of more groups than this."""


class ApplyQueue:
    """Groups that were written or failed and that the loop has not handled yet.

    Args:
        soon: schedules a call on the loop, from any thread.
        answer_group: called on the loop with each group and its error, if any; must not raise.
    """

    def __init__(
        self, soon: Soon, answer_group: Callable[[LogGroup, LogError | None], None]
    ) -> None:
        self._soon = soon
        self._answer_group = answer_group
        self._written: deque[tuple[LogGroup, LogError | None]] = deque()
        self._told = False
        self._looks_again = False
        """Whether the loop checks again soon, told or not."""
        self._woken = trio.Event()
        """Set when the loop must start its periodic checks."""
        self.thread_writes = False
        """Whether the log's own thread writes; it tells the loop before it sleeps."""
        # Groups that were stored, and how many of them are applied.
        self._stored = self._applied = 0
        # Changed under the lock: the store's groups come from another thread.
        self._adding = threading.Lock()
        self._added_bytes = self._taken_bytes = 0
        self._settling = threading.Condition()
        self._readers = 0
        self._waited_for_at = -AT_ONCE_S
        self.apply: Apply = lambda entries: None
        self.diverged: LogFailed | None = None
        """Set when `apply` refused a group: what it holds is behind the log for good. Any thread.
        """
        self.applied_between_ns = (0, 0)
        """When the group being applied began to be written, and when it was stored."""
        self.groups = 0
        self.records = 0

    # The writer

    def add(self, group: LogGroup, error: LogError | None) -> None:
        """Queue a group. A stored group counts as written from here on: readers wait for it."""
        with self._adding:
            if error is None:
                self._stored += 1
            self._added_bytes += group.end - group.start
            self._written.append((group, error))

    def tell_if_due(self, group: LogGroup) -> None:
        """Tell the loop of a group before its writer has done everything else, if the group is
        urgent.
        """
        much = self._added_bytes - self._taken_bytes > _MUCH_BYTES
        # An appender that is answered on the loop must not wait for other answers.
        waited_for = not all(entry.on_stored for entry in group.entries)
        if much or waited_for or (self.thread_writes and self._cannot_wait()):
            self.tell_now()

    def _cannot_wait(self) -> bool:
        return (
            not self._looks_again
            or len(self._written) >= _LATER_GROUPS
            or time.monotonic() - self._waited_for_at < AT_ONCE_S
        )

    def tell(self) -> None:
        """Make sure that written groups are applied soon. Any thread."""
        if self._written and not self.thread_writes and self._cannot_wait():
            self.tell_now()

    def tell_now(self) -> None:
        """Schedule a catch-up on the loop. Any thread."""
        # Cleared before the loop checks, so a group added while it is set is not missed.
        if not self._told:
            self._told = True
            self._soon(self._take_turn)

    # A reader

    @property
    def settled(self) -> bool:
        """Whether everything written so far is applied. Any thread."""
        return self._stored == self._applied

    def wait_settled(self, timeout_s: float) -> bool:
        """Whether everything written so far is applied in time. Any thread but the loop's."""
        stored = self._stored
        if self._applied >= stored:
            return True
        self._waited_for_at = time.monotonic()
        self.tell_now()
        with self._settling:
            self._readers += 1
            try:
                return self._settling.wait_for(lambda: self._applied >= stored, timeout_s)
            finally:
                self._readers -= 1

    # The loop

    async def run(self) -> None:
        """Check for written groups periodically while they arrive; never returns.

        A group is applied even if the thread that wrote it is late to call `tell`.
        """
        while True:
            with trio.move_on_after(CATCH_UP_S):
                await self._woken.wait()
            self._woken = trio.Event()
            await trio.sleep(LOOK_AGAIN_S)
            while self._look_again():
                await trio.sleep(LOOK_AGAIN_S)

    def _look_again(self) -> bool:
        """Catch up; return whether to check again because there was something."""
        if not self._written:
            # Cleared before the second check, so a group added while it was set is not missed.
            self._looks_again = False
            if not self._written:
                return False
            self._looks_again = True
        self.catch_up()
        return True

    def _take_turn(self) -> None:
        """Catch up for a bounded number of groups, so other tasks get a turn however fast groups
        arrive.
        """
        self._told = False
        if not self._looks_again:
            self._looks_again = True
            self._woken.set()
        self._take(min(len(self._written), _TURN))
        if self._written:
            self.tell_now()

    def catch_up(self) -> None:
        """Apply and answer the groups that are written now, not later ones."""
        self._take(len(self._written))

    def _take(self, groups: int) -> None:
        for _ in range(groups):
            group, error = self._written.popleft()
            self._taken_bytes += group.end - group.start
            self._answer_group(group, error)
        # Checked after the counters changed: a reader that registers later sees the new counts.
        if self._readers:
            with self._settling:
                self._settling.notify_all()

    def apply_group(self, group: LogGroup) -> None:
        """Apply a group and answer it. Atomic: no await, so log order is the only order.

        Raises:
            LogFailed: `apply` refused the group. No later group is applied either.
        """
        if self.diverged is not None:
            answer(group.entries, self.diverged)
            return
        self.applied_between_ns = (group.began_ns, group.stored_ns)
        try:
            self.apply(group.entries)
        except BaseException as exc:
            # The log holds entries that could not be applied: only a restart makes both agree.
            self.diverged = LogFailed(f"entries that are in the log could not be applied: {exc!r}")
            answer(group.entries, self.diverged)
            raise self.diverged from exc
        self.groups += 1
        self._applied += 1
        self.records += len(group.records)
        answer(group.entries, None)


class GroupWriter:
    """Writes queued items. Any thread.

    During a write the open segment and its fill belong to the writing thread.
    """

    def __init__(
        self,
        segments: SegmentSet,
        queue: AppendQueue,
        applies: ApplyQueue,
        on_loop: OnLoop,
        *,
        sync: bool,
    ) -> None:
        self._segments = segments
        self._queue = queue
        self._applies = applies
        self._on_loop = on_loop
        self._sync = sync
        self._make: Make = no_drafts
        self._shipping: Shipping | None = None
        self._bell: SimpleQueue[bool] = SimpleQueue()

    def start(self, make: Make | None, shipping: Shipping | None) -> None:
        """Start the log's own thread; `make` makes entries of drafts."""
        self._make = make or self._make
        self._shipping = shipping
        # A daemon thread: a sync that never returns must not keep the process from exiting.
        threading.Thread(target=self._run, name="wal-append", daemon=True).start()

    def end(self) -> None:
        """End the log's own thread once it has done what it was woken for."""
        self._bell.put(False)

    def wake(self) -> None:
        """Make the log's own thread write what is queued."""
        self._bell.put(True)

    def carry_on(self, *, here: bool) -> None:
        """Have what is queued written, after `AppendQueue.append` has returned True.

        Args:
            here: the caller writes the group before this returns. It calls `ApplyQueue.tell` once
                its urgent work is done.
        """
        if here:
            self._write_here()
        else:
            self.wake()

    def _run(self) -> None:
        while self._bell.get():
            self._applies.thread_writes = True
            while self._write_next():
                self._queue.await_callers()
            # Cleared before the last check, so a thread that finds it set need not tell the loop.
            self._applies.thread_writes = False
            self._applies.tell()

    def _write_here(self) -> None:
        """Write one group in the calling thread, which found no other thread writing."""
        if self._write_next() and self._queue.leave_rest():
            self.wake()

    def _write_next(self) -> bool:
        """Write a group if there is one; False if the caller must stop writing."""
        try:
            group = self._queue.next_group(self._make)
            if group is not None:
                self._write(group)
        except BaseException as exc:
            self._on_loop.lost(exc)
            return False
        return group is not None

    def _write(self, group: LogGroup) -> None:
        group.began_s, group.began_ns = time.monotonic(), time.time_ns()
        try:
            self._segments.write(group, sync=self._sync)
        except LogError as exc:
            self._queue.failed(group, exc)
            self._applies.add(group, exc)
            self._applies.tell_now()
            return
        group.stored_ns = time.time_ns()
        shipping = self._shipping
        taken = [] if shipping is None else [one for one in group.entries if shipping.takes(one)]
        self._queue.written(group)
        if shipping is not None and taken:
            # Before anything later is applied: a reader learns what is not applied yet.
            for entry in taken:
                entry.shipped = True
                if entry.kind == RecordKind.OPERATION:
                    for route in entry.routes:
                        route.wait(entry.seq)
            group.entries = [entry for entry in group.entries if not entry.shipped]
            shipping.submit(taken)
        # Before any callback: a caller that is told finds the group on the queue.
        self._applies.add(group, None)
        for entry in group.entries:
            if entry.on_stored is not None:
                entry.on_stored(entry)
        self._applies.tell_if_due(group)
        if shipping is not None and taken:
            shipping.announce()

    def shipped(self, group: LogGroup, error: LogError | None) -> None:
        """Queue entries that the store has, or that it may never have. Any thread, in order."""
        self._applies.add(group, error)
        if error is None:
            for entry in group.entries:
                if entry.on_stored is not None:
                    entry.on_stored(entry)
        self._applies.tell_now()
