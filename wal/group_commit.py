"""Law: a segment is changed between two groups: when one is asked for, and at a certain age.

Everybody who asks while a rotation is due shares it, and is answered exactly once. One that fails
because of age alone is tried again after another age.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import trio

from wal.append_queue import AppendQueue, Item, Make, answer, refusal_of
from wal.apply_queue import Apply, ApplyQueue
from wal.entry import Entry
from wal.errors import LogClosed, LogError, LogFailed, LogFull, LogWriteFailed
from wal.group import Group
from wal.group_writer import GroupWriter
from wal.segments import SegmentSet
from wal.settings import LogSettings


class _Request:
    """A rotation that was asked for."""

    def __init__(self) -> None:
        self.force = False
        self.done = trio.Event()
        self.error: LogError | None = None

    def answer(self, error: LogError | None) -> None:
        self.error = error
        self.done.set()


class Rotations:
    """Decides when the next group belongs into another segment. Loop only."""

    def __init__(self, segments: SegmentSet, age_s: float) -> None:
        self._segments = segments
        self._age_s = age_s
        self._request: _Request | None = None
        self._retry_at = 0.0

    @property
    def deadline(self) -> float:
        """The time at which the open segment is too old; infinity where it holds no operation."""
        since = self._segments.first_operation_at
        return math.inf if since is None else max(since + self._age_s, self._retry_at)

    @property
    def due(self) -> bool:
        """Whether a rotation has to come before the next group."""
        return self._request is not None or trio.current_time() >= self.deadline

    async def wait(self, *, force: bool) -> None:
        """Return when the running task has rotated; the errors of `SegmentSet.rotate`."""
        request = self._request = self._request or _Request()
        request.force = request.force or force
        await request.done.wait()
        if request.error is not None:
            # A new one for each caller: one exception raised in several tasks mixes tracebacks.
            raise type(request.error)(*request.error.args) from request.error

    async def rotate(self) -> None:
        """Rotate for whoever asked and for age; raises LogFailed, and answers any other error."""
        request, self._request = self._request, None
        segment = self._segments.open
        used = segment is None or segment.fill.operations > 0
        error: LogError | None = None
        try:
            if used or (request is not None and request.force):
                await self._segments.rotate()
        except LogError as exc:
            error = exc
            self._retry_at = trio.current_time() + self._age_s
        if request is not None:
            request.answer(error)
        if isinstance(error, LogFailed):
            raise error

    def refuse(self, error: LogError) -> None:
        """Answer whoever has asked with `error`."""
        request, self._request = self._request, None
        if request is not None:
            request.answer(error)


class GroupsInFlight:
    """The loop's side of the groups between their forming and their answers.

    Loop only, but for what `wal.append_queue.OnLoop` names. While a group is out, and until
    `release` after a `hold`, the open segment and its fill are the writer's.

    Args:
        sync: whether a group is synced before it counts.
        attention: called when the queue is stuck, and after each group; must not raise.
    """

    def __init__(self, segments: SegmentSet, *, sync: bool, attention: Callable[[], None]) -> None:
        self._segments = segments
        self._attention = attention
        self._token: trio.lowlevel.TrioToken | None = None
        self._at_rest = trio.Event()
        self.applies = ApplyQueue(self._soon, self._answer_group)
        self.queue = AppendQueue(segments, self, sync=sync)
        self.writer = GroupWriter(segments, self.queue, self.applies, self, sync=sync)
        self.failure: LogFailed | None = None
        """The failure after which no group is begun. What was written counts, and is applied."""
        self.crash: BaseException | None = None
        """The error that ends the run: the disk's failure, or what a callback raised."""
        self.failed_groups = 0

    def open(self, apply: Apply, make: Make | None) -> None:
        """Start the writing thread, whose groups are applied; the queue is still held."""

        def apply_and_note(entries: Sequence[Entry]) -> None:
            self._segments.note_written()
            apply(entries)

        self.applies.apply = apply_and_note
        self._token = trio.lowlevel.current_trio_token()
        self.writer.start(make)

    async def close(self) -> None:
        """Begin no group any more; returns when the last one is answered and nobody writes."""
        await self.hold()
        self._at_rest = trio.Event()
        while not self.queue.idle:
            await self._at_rest.wait()
            self._at_rest = trio.Event()
        self.writer.end()

    async def hold(self) -> None:
        """Begin no group until `release`; returns when none is in flight."""
        self.queue.hold()
        while self.queue.groups:
            # Also what nobody has told of: who wrote it may be busy with its answer for long.
            self.applies.catch_up()
            if self.queue.groups:
                self._at_rest = trio.Event()
                await self._at_rest.wait()

    def release(self) -> None:
        """Go on with what is pending."""
        if self.queue.release():
            self.writer.wake()

    def answer_pending(self, error: LogError) -> None:
        """Answer everyone whose entry is in no group yet."""
        answer(self.queue.take_pending(error), error)

    # Any thread: see `OnLoop`

    def refused(self, items: Iterable[Item], error: LogError | None) -> None:
        self._soon(self._answer_apart, items, error)

    def attention(self) -> None:
        self._soon(self._attention)

    def rested(self) -> None:
        self._soon(self._note_rest)

    def lost(self, exc: BaseException) -> None:
        self._soon(self._answer_lost, exc)

    def _soon(self, call: Callable[..., object], *args: object) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):  # nobody is left to be told
            self._token.run_sync_soon(call, *args)

    # The loop

    def _answer_group(self, group: Group, error: LogError | None) -> None:
        """Apply a group and answer it, or answer for its failure."""
        try:
            if error is None:
                self.applies.apply_group(group)
            else:
                self._answer_failed(group, error)
        except BaseException as exc:
            self.failure = self.applies.parted or self.failure
            self._break(exc)
        self.queue.groups.popleft()
        if not self.queue.groups:
            self._at_rest.set()
        self._attention()

    def _answer_failed(self, group: Group, error: LogError) -> None:
        """Answer a group that failed and all that is pending; go on if the disk can be trusted."""
        self.failed_groups += 1
        if isinstance(error, LogFailed):
            answer(group.entries, error)
            raise error
        answer((*group.entries, *self.queue.take_pending(error)), error)
        if self.queue.go_on():
            self.writer.wake()

    def _answer_apart(self, items: Iterable[Item], error: LogError | None) -> None:
        """Answer what comes into no group, with its session's refusal where there is no other."""
        try:
            for item in items:
                answer((item,), error or refusal_of(item))
        except BaseException as exc:
            self._break(exc)

    def _answer_lost(self, exc: BaseException) -> None:
        """Answer for a writer that died in the middle of a group: it may be in the log, or not."""
        self.applies.catch_up()
        failure = self.failure = LogFailed(f"the log's own thread failed: {exc!r}")
        lost = self.queue.take_lost()
        self._at_rest.set()
        self._break(exc)
        with suppress(Exception):  # the run ends with what came first
            answer(lost, failure)

    def _note_rest(self) -> None:
        self.applies.catch_up()
        self._at_rest.set()
        self._attention()

    def _break(self, exc: BaseException) -> None:
        """Write nothing any more: the run ends with `exc`."""
        self.crash = self.crash or exc
        self.queue.hold()
        self._attention()


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
