"""Law: what needs waiting is done between two groups, by one task: rotations, and the run's end.

::

    held ─▶ rotate, or open the next segment ─▶ released ─▶ groups ... ─▶ something is due ─▶ held

Whoever appended or asked for a rotation is answered exactly once: when a group fails, when the disk
dies, when `run` is cancelled. An owner that dies answers everyone who waits on it first.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from wal.apply_queue import Apply
from wal.errors import LogClosed, LogError, LogFailed, LogFull, LogWriteFailed
from wal.in_flight import GroupsInFlight
from wal.pending import Make
from wal.rotation import Rotations
from wal.segments import SegmentSet
from wal.settings import LogSettings


class GroupCommit:
    """Runs the log from its start to its end. Loop only."""

    def __init__(self, segments: SegmentSet, settings: LogSettings) -> None:
        self._segments = segments
        self._settings = settings
        self._rotations = Rotations(segments, settings.segment_age_s)
        self.groups = GroupsInFlight(
            segments, sync=settings.fsync == "commit", attention=self._look
        )
        self._wake = trio.Event()
        self._asleep_until = math.inf
        self._stopped = trio.Event()
        self._closing = False
        self.running = False

    async def rotate(self, *, force: bool) -> None:
        """Wait until the running task has rotated; the errors of `SegmentSet.rotate`."""
        if self._closing or not self.running:
            raise LogClosed("the log does not run") from self.groups.failure
        self._wake.set()
        await self._rotations.wait(force=force)

    async def run(
        self, apply: Apply, make: Make | None, task_status: trio.TaskStatus[None]
    ) -> None:
        """Commit until `finish`, cancellation or failure. LogFailed ends the process."""
        self.running = True
        self.groups.open(apply, make)
        interval = self._settings.fsync == "interval"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._segments.prepare_ahead, nursery)
                nursery.start_soon(self._guard, self._segments.sealed.run, nursery)
                nursery.start_soon(self.groups.applies.run)
                if interval:
                    nursery.start_soon(self._guard, self._sync_by_timer, nursery)
                task_status.started()
                await self._guard(self._tend, nursery)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.groups.close()
            self.running = False
            self._close()
            self._answer_pending(LogClosed("the log stopped before it could answer"))
            self._stopped.set()
        if self.groups.failure is not None:
            raise self.groups.failure

    async def finish(self) -> None:
        """Refuse what comes, commit what is pending, end `run`; without a `run`, answer it."""
        self._close()
        self._wake.set()
        if self.running:
            await self._stopped.wait()
        else:
            self._answer_pending(LogClosed("the log was closed before this was written"))

    def fail(self, exc: LogFailed) -> None:
        """Take note that the disk cannot be trusted, and answer everyone who waits for a group.

        The group that is being written is answered as soon as its thread is back.
        """
        failure = self.groups.failure = self.groups.failure or exc
        self._close()
        self._wake.set()
        self._answer_pending(failure)

    def _close(self) -> None:
        self._closing = True
        self.groups.queue.shut(self.groups.failure)

    async def _guard(self, task: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Run a task of `run`; if the disk dies under it, all of them end."""
        try:
            await task()
        except LogFailed as exc:
            self.fail(exc)
            nursery.cancel_scope.cancel()

    async def _sync_by_timer(self) -> None:
        while True:
            await self._segments.written.wait()
            self._segments.written = trio.Event()
            await trio.sleep(self._settings.fsync_interval_s)
            await self._segments.sync()

    async def _tend(self) -> None:
        """Do what needs waiting, whenever there is something, until the end."""
        groups = self.groups
        while groups.crash is None:
            # What has been started is brought to its end: an entry that is in the file is applied
            # and answered. Every step in here is bounded by the disk.
            with trio.CancelScope(shield=True):
                await groups.hold()
                await self._change_segment()
            if groups.crash is None:
                groups.release()
                if self._closing and groups.queue.empty:
                    return
                await self._wait_for_work()
        raise groups.crash

    async def _change_segment(self) -> None:
        if self.groups.crash is not None or self.groups.failure is not None:
            return  # a disk that failed a sync once may say the next time that all is well
        if self._rotations.due:
            await self._rotations.rotate()
        elif self.groups.queue.stuck:
            await self._open_next()

    async def _open_next(self) -> None:
        """Open a segment for the pending items, or refuse them where there is none to be had."""
        try:
            await self._segments.rotate()
        except (LogFull, LogWriteFailed) as exc:
            self.groups.failed_groups += 1
            self._answer_pending(exc)

    async def _wait_for_work(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._has_work():
            self._asleep_until = self._rotations.deadline
            with trio.move_on_at(self._asleep_until):
                await self._wake.wait()
            self._wake = trio.Event()

    def _look(self) -> None:
        """Wake the tending task if there is work for it: something has changed at the queue."""
        if self._has_work() or self._rotations.deadline < self._asleep_until:
            self._wake.set()

    def _has_work(self) -> bool:
        """Whether there is something to be done between two groups."""
        queue = self.groups.queue
        ended = self._closing and queue.empty
        return queue.stuck or ended or self.groups.crash is not None or self._rotations.due

    def _answer_pending(self, error: LogError) -> None:
        self._rotations.refuse(error)
        self.groups.answer_pending(error)
