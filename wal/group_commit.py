"""Law: what needs waiting is done between two groups, by one task: rotations, and the run's end.

Whoever appended or asked for a rotation is answered exactly once: when a group fails, when the disk
dies, when `run` is cancelled. An owner that dies answers everyone who waits on it first.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from wal.append_queue import AppendQueue
from wal.apply_queue import Apply
from wal.entry import Draft, Entry
from wal.errors import LogClosed, LogError, LogFailed, LogFull, LogWriteFailed
from wal.pending import Make
from wal.segments import SegmentSet
from wal.settings import LogSettings

CATCH_UP_S = 0.5
LOOK_AGAIN_S = 0.02
"""While groups come: the loop is woken that often instead of for each of them."""


class _Rotation:
    """A wish for a new segment; everybody who wishes meanwhile shares it."""

    def __init__(self) -> None:
        self.force = False
        self.done = trio.Event()
        self.error: LogError | None = None

    def answer(self, error: LogError | None) -> None:
        self.error = error
        self.done.set()


class GroupCommit:
    """Runs the queue before the log. On the loop, but for `append`."""

    def __init__(self, segments: SegmentSet, settings: LogSettings) -> None:
        self._segments = segments
        self._settings = settings
        self.queue = AppendQueue(segments, sync=settings.fsync == "commit", attention=self._look)
        self._rotation: _Rotation | None = None
        self._wake = trio.Event()
        self._asleep_until = math.inf
        self._stopped = trio.Event()
        self._closing = False
        self._age_retry_at = 0.0
        self.running = False

    @property
    def failure(self) -> LogFailed | None:
        """Why the disk cannot be trusted any more."""
        return self.queue.failure

    def append(self, item: Entry | Draft, *, here: bool) -> None:
        """Queue it. LogClosed when nothing is taken any more: it is not answered then.

        Any thread; see `AppendQueue.append`.
        """
        self.queue.append(item, here=here)

    async def rotate(self, *, force: bool) -> None:
        """Wait until the running task has rotated; the errors of `SegmentSet.rotate`."""
        if self._closing or not self.running:
            raise LogClosed("the log does not run") from self.failure
        if self._rotation is None:
            self._rotation = _Rotation()
        rotation = self._rotation
        rotation.force = rotation.force or force
        self._wake.set()
        await rotation.done.wait()
        if rotation.error is not None:
            # A new one for each caller: one exception raised in several tasks mixes tracebacks.
            raise type(rotation.error)(*rotation.error.args) from rotation.error

    async def run(
        self, apply: Apply, make: Make | None, task_status: trio.TaskStatus[None]
    ) -> None:
        """Commit until `finish`, cancellation or failure. LogFailed ends the process."""
        self.running = True
        self.queue.open(apply, make)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._segments.prepare_ahead, nursery)
                nursery.start_soon(self._guard, self._segments.trim_sealed, nursery)
                nursery.start_soon(self._look_again)
                if self._settings.fsync == "interval":
                    nursery.start_soon(self._guard, self._sync_by_timer, nursery)
                task_status.started()
                await self._guard(self._tend, nursery)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.queue.close()
            self.running = False
            self._close()
            self._answer_waiting(LogClosed("the log stopped before it could answer"))
            self._stopped.set()
        if self.failure is not None:
            raise self.failure

    async def finish(self) -> None:
        """Refuse what comes, commit what waits, end `run`; without a `run`, answer what waits."""
        self._close()
        self._wake.set()
        if self.running:
            await self._stopped.wait()
        else:
            self._answer_waiting(LogClosed("the log was closed before this was written"))

    def fail(self, exc: LogFailed) -> None:
        """Take note that the disk cannot be trusted, and answer everyone who waits for a group.

        The group that is being written is answered as soon as its thread is back.
        """
        failure = self.queue.failure = self.queue.failure or exc
        self._close()
        self._wake.set()
        self._answer_waiting(failure)

    def _close(self) -> None:
        self._closing = True
        self.queue.shut()

    async def _guard(self, task: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Run a task of `run`; if the disk dies under it, all of them end."""
        try:
            await task()
        except LogFailed as exc:
            self.fail(exc)
            nursery.cancel_scope.cancel()

    async def _look_again(self) -> None:
        """Apply what is written without being told of each group, as long as more of them come.

        Nobody's rows wait for a thread that writes and does not come to `tell` of it.
        """
        handover = self.queue.handover
        while True:
            with trio.move_on_after(CATCH_UP_S):
                await handover.woken.wait()
            handover.woken = trio.Event()
            await trio.sleep(LOOK_AGAIN_S)
            while handover.look_again():
                await trio.sleep(LOOK_AGAIN_S)

    async def _sync_by_timer(self) -> None:
        while True:
            await self._segments.written.wait()
            self._segments.written = trio.Event()
            await trio.sleep(self._settings.fsync_interval_s)
            await self._segments.sync()

    async def _tend(self) -> None:
        """Do what needs waiting, whenever there is something, until the end."""
        while self.queue.crash is None:
            # What has been started is brought to its end: an entry that is in the file is applied
            # and answered. Every step in here is bounded by the disk.
            with trio.CancelScope(shield=True):
                await self.queue.hold()
                await self._change_segment()
            if self.queue.crash is None:
                self.queue.release()
                if self._closing and self.queue.empty:
                    return
                await self._wait_for_work()
        raise self.queue.crash

    async def _change_segment(self) -> None:
        if self.queue.crash is not None or self.failure is not None:
            return  # a disk that failed a sync once may say the next time that all is well
        if self._due():
            await self._rotate()
        elif self.queue.stuck:
            await self._open_next()

    async def _wait_for_work(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._wanted():
            self._asleep_until = self._age_deadline()
            with trio.move_on_at(self._asleep_until):
                await self._wake.wait()
            self._wake = trio.Event()

    def _look(self) -> None:
        """Something has changed at the queue."""
        if self._wanted() or self._age_deadline() < self._asleep_until:
            self._wake.set()

    def _wanted(self) -> bool:
        """Whether there is something to be done between two groups."""
        queue = self.queue
        ended = self._closing and queue.empty
        return queue.stuck or ended or queue.crash is not None or self._due()

    def _due(self) -> bool:
        """Whether the next group belongs into another segment."""
        return self._rotation is not None or self._too_old()

    def _age_deadline(self) -> float:
        since = self._segments.first_operation_at
        if since is None:
            return math.inf
        return max(since + self._settings.segment_age_s, self._age_retry_at)

    def _too_old(self) -> bool:
        return trio.current_time() >= self._age_deadline()

    async def _rotate(self) -> None:
        """Rotate for whoever asked and for age. A failed one for age waits for another age."""
        rotation, self._rotation = self._rotation, None
        segment = self._segments.open
        used = segment is None or segment.ledger.operations > 0
        error: LogError | None = None
        try:
            if used or (rotation is not None and rotation.force):
                await self._segments.rotate()
        except LogError as exc:
            error = exc
            self._age_retry_at = trio.current_time() + self._settings.segment_age_s
        if rotation is not None:
            rotation.answer(error)
        if isinstance(error, LogFailed):
            raise error

    async def _open_next(self) -> None:
        """A segment for what waits; where there is none to be had, it is refused."""
        try:
            await self._segments.rotate()
        except (LogFull, LogWriteFailed) as exc:
            self.queue.failed_groups += 1
            self._answer_waiting(exc)

    def _answer_waiting(self, error: LogError) -> None:
        rotation, self._rotation = self._rotation, None
        if rotation is not None:
            rotation.answer(error)
        self.queue.answer_waiting(error)
