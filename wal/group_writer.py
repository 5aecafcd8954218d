"""Writes groups: in the log's own thread, or in a thread that appends.

::

    group ─▶ write + sync ─▶ book ─▶ apply queue ─▶ on_stored ─▶ the loop is told, if due
                   └ failed ───────▶ apply queue ──────────────▶ the loop is told

One thread writes at a time. The log's own thread sleeps while nothing is pending. A thread that
appends while no thread writes, and would wait for the outcome anyway, writes one group itself and
leaves the rest to the log's thread. This saves two trips through the event loop per commit, which
take as long as a sync on a fast disk.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from wal.append_queue import AppendQueue, Item, Make, OnLoop, no_drafts
from wal.apply_queue import ApplyQueue
from wal.errors import LogError
from wal.group import LogGroup
from wal.segments import SegmentSet


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
        self._bell: SimpleQueue[bool] = SimpleQueue()

    def start(self, make: Make | None) -> None:
        """Start the log's own thread; `make` makes entries of drafts."""
        self._make = make or self._make
        # A daemon thread: a sync that never returns must not keep the process from exiting.
        threading.Thread(target=self._run, name="wal-append", daemon=True).start()

    def end(self) -> None:
        """End the log's own thread once it has done what it was woken for."""
        self._bell.put(False)

    def wake(self) -> None:
        """Make the log's own thread write what is queued."""
        self._bell.put(True)

    def append(self, item: Item, *, here: bool) -> None:
        """Queue `item`, and make sure that it is written.

        Args:
            here: if no thread writes, the caller writes the group before this returns. It calls
                `ApplyQueue.tell` once its urgent work is done.

        Raises:
            LogClosed: the log takes nothing more; the item is not answered.
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
        self._queue.written(group)
        # Before any callback: a caller that is told finds the group on the queue.
        self._applies.add(group, None)
        for entry in group.entries:
            if entry.on_stored is not None:
                entry.on_stored(entry)
        self._applies.tell_if_due(group)
