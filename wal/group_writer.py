"""Law: a group is written and synced, then it counts, then its entries' ``on_stored`` is called.

::

    group ─▶ write + sync ─▶ book ─▶ on the apply queue ─▶ on_stored ─▶ the loop is told, if due
                   └ failed ───────▶ on the apply queue ──────────────▶ the loop is told

Two kinds of threads write, one at a time: the log's own, which sleeps while there is nothing, and
one that appends while nobody writes and would wait for the outcome anyway; it writes one group and
leaves to the log's own thread what has come meanwhile. (A thread that is borrowed for each group
costs a task's way through the event loop twice; a commit waits as long for that as for a fast
disk.)
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from wal.append_queue import AppendQueue, Item, Make, OnLoop, no_drafts
from wal.apply_queue import ApplyQueue
from wal.errors import LogError
from wal.group import Group
from wal.segments import SegmentSet


class GroupWriter:
    """Writes what is queued, in the log's own thread or in one that appends. Any thread.

    While a group is out, the open segment and its fill are the writing thread's.
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
        self._bell: SimpleQueue[bool] = SimpleQueue()

    def start(self, make: Make | None) -> None:
        """Start the log's own thread; `make` makes entries of drafts."""
        self._make = make or self._make
        # A daemon: a sync that never returns must not keep a process that has given up.
        threading.Thread(target=self._run, name="wal-append", daemon=True).start()

    def end(self) -> None:
        """End the log's own thread when it has done what it was woken for."""
        self._bell.put(False)

    def wake(self) -> None:
        """Have the log's own thread write what is queued."""
        self._bell.put(True)

    def append(self, item: Item, *, here: bool) -> None:
        """Queue `item`, and see that it is written.

        Args:
            here: if nobody writes now, the caller does, and returns when its group is written. It
                calls `ApplyQueue.tell` when it has done what it hurries to do.

        Raises:
            LogClosed: nothing is taken any more; the item is not answered then.
        """
        if self._queue.append(item, here=here):
            if here:
                self._write_here()
            else:
                self.wake()

    def _run(self) -> None:
        while self._bell.get():
            self._applies.thread_writes = True
            while self._write_next():
                self._queue.await_callers()
            # Cleared before it looks: whoever finds it set need not tell.
            self._applies.thread_writes = False
            self._applies.tell()

    def _write_here(self) -> None:
        """Write one group, in a thread that found nobody writing."""
        if self._write_next() and self._queue.leave_rest():
            self.wake()

    def _write_next(self) -> bool:
        """Write a group, if there is one; False where the caller must stop writing."""
        try:
            group = self._queue.next_group(self._make)
            if group is not None:
                self._write(group)
        except BaseException as exc:
            self._on_loop.lost(exc)
            return False
        return group is not None

    def _write(self, group: Group) -> None:
        group.began_s, group.began_ns = time.monotonic(), time.time_ns()
        try:
            self._segments.write(group, sync=self._sync)
        except LogError as exc:
            self._queue.failed(group, exc)
            self._applies.add(group, exc)
            self._applies.tell_now()
            return
        group.stored_ns = time.time_ns()
        self._queue.written(group)
        # Before anyone hears of it.
        self._applies.add(group, None)
        for entry in group.entries:
            if entry.on_stored is not None:
                entry.on_stored(entry)
        self._applies.tell_if_due(group)
