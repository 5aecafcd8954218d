"""Runs the log from start to end: one task holds the writer, rotates segments, and handles
failures.

::

    held ─▶ rotate, or open the next segment ─▶ released ─▶ groups ... ─▶ something is due ─▶ held

    group written ─▶ applied, answered                   (`wal.group_writer`)
    group refused ─▶ answered with the error, with everything pending behind it; writing continues
    LogFailed, `apply` raised, or the writer died ─▶ everything is answered; the run ends

Every append and every request for a rotation is answered exactly once, also when a group fails, the
disk dies or `run` is cancelled (tests/wal/test_failures.py). Entries behind a refused group are
refused with it, so that no client's later entry is in the log without its earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import trio

from wal.append_queue import AppendQueue, Item, Make, answer, refusal_of
from wal.entry import Entry
from wal.errors import LogClosed, LogError, LogFailed, LogFull, LogWriteFailed
from wal.group import LogGroup
from wal.group_writer import Apply, ApplyQueue, GroupWriter
from wal.segments import SegmentSet
from wal.settings import LogSettings
from wal.shipping import Shipping


class _RotationRequest:
    """Callers that wait for one rotation."""

    def __init__(self) -> None:
        self.force = False
        self.done = trio.Event()
        self.error: LogError | None = None

    def answer(self, error: LogError | None) -> None:
        self.error = error
        self.done.set()


class Rotations:
    """Decides when the next group needs another segment: on request, or at a certain age. Loop
    only.

    Callers that ask while a rotation is due share it. A rotation that fails, and was due by age
    only, is tried again after another age.
    """

    def __init__(self, segments: SegmentSet, age_s: float) -> None:
        self._segments = segments
        self._age_s = age_s
        self._request: _RotationRequest | None = None
        self._retry_at = 0.0

    @property
    def deadline(self) -> float:
        """The time at which the open segment is too old; infinity while it holds no operation."""
        since = self._segments.first_operation_at
        return math.inf if since is None else max(since + self._age_s, self._retry_at)

    @property
    def due(self) -> bool:
        """Whether a rotation must come before the next group."""
        return self._request is not None or trio.current_time() >= self.deadline

    async def wait(self, *, force: bool) -> None:
        """Return when the running task has rotated; raises the errors of `SegmentSet.rotate`."""
        request = self._request = self._request or _RotationRequest()
        request.force = request.force or force
        await request.done.wait()
        if request.error is not None:
            # A new exception for each caller: one raised in several tasks mixes tracebacks.
            raise type(request.error)(*request.error.args) from request.error

    async def rotate(self) -> None:
        """Rotate on request and by age; raises only LogFailed and answers every error."""
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
        """Answer a pending request with `error`."""
        request, self._request = self._request, None
        if request is not None:
            request.answer(error)


class GroupsInFlight:
    """The loop's side of the groups between their forming and their answers.

    Loop only, except the methods of `wal.append_queue.OnLoop`. During a write, and until `hold`
    returns, the open segment and its fill belong to the writer.

    Args:
        sync: whether a group is synced before it counts as written.
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
        """After this failure no group is begun. Written groups count and are applied."""
        self.crash: BaseException | None = None
        """The error that ends the run: the disk's failure, or an exception of a callback."""
        self.failed_groups = 0

    def open(self, apply: Apply, make: Make | None, shipping: Shipping | None) -> None:
        """Start the writing thread, whose groups are applied. The queue stays held."""

        def apply_and_note(entries: Sequence[Entry]) -> None:
            self._segments.note_written()
            apply(entries)

        self.applies.apply = apply_and_note
        self._token = trio.lowlevel.current_trio_token()
        self.writer.start(make, shipping)

    async def close(self) -> None:
        """Begin no further group; returns when the last one is answered and no thread writes."""
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
            # Includes groups that the loop was not told of: their writers may be busy for long.
            self.applies.catch_up()
            if self.queue.groups:
                self._at_rest = trio.Event()
                await self._at_rest.wait()

    def release(self) -> None:
        """Let the writer continue with what is pending."""
        if self.queue.release():
            self.writer.wake()

    def answer_pending(self, error: LogError) -> None:
        """Answer all items that are in no group."""
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
        with suppress(trio.RunFinishedError):  # the loop has ended
            self._token.run_sync_soon(call, *args)

    # The loop

    def _answer_group(self, group: LogGroup, error: LogError | None) -> None:
        """Apply a group and answer it, or answer its failure."""
        try:
            if error is None:
                self.applies.apply_group(group)
            elif group.shipped:
                answer(group.entries, error)
            else:
                self._answer_failed(group, error)
        except BaseException as exc:
            self.failure = self.applies.diverged or self.failure
            self._break(exc)
        if group.shipped:
            return  # it left the queue when it was written
        self.queue.groups.popleft()
        if not self.queue.groups:
            self._at_rest.set()
        self._attention()

    def _answer_failed(self, group: LogGroup, error: LogError) -> None:
        """Answer a failed group and everything pending; continue if the disk can be trusted."""
        self.failed_groups += 1
        if isinstance(error, LogFailed):
            answer(group.entries, error)
            raise error
        answer((*group.entries, *self.queue.take_pending(error)), error)
        if self.queue.resume():
            self.writer.wake()

    def _answer_apart(self, items: Iterable[Item], error: LogError | None) -> None:
        """Answer items that enter no group, with their session's refusal if there is no other
        error.
        """
        try:
            for item in items:
                answer((item,), error or refusal_of(item))
        except BaseException as exc:
            self._break(exc)

    def _answer_lost(self, exc: BaseException) -> None:
        """Answer for a writer that died in a group, which may or may not be in the log."""
        self.applies.catch_up()
        failure = self.failure = LogFailed(f"the log's own thread failed: {exc!r}")
        lost = self.queue.take_lost()
        self._at_rest.set()
        self._break(exc)
        with suppress(Exception):  # the run ends with the first error
            answer(lost, failure)

    def _note_rest(self) -> None:
        self.applies.catch_up()
        self._at_rest.set()
        self._attention()

    def _break(self, exc: BaseException) -> None:
        """Stop writing: the run ends with `exc`."""
        self.crash = self.crash or exc
        self.queue.hold()
        self._attention()


class GroupCommit:
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
        """Wait until the running task has rotated; raises the errors of `SegmentSet.rotate`."""
        if self._closing or not self.running:
            raise LogClosed("the log does not run") from self.groups.failure
        self._wake.set()
        await self._rotations.wait(force=force)

    async def run(
        self,
        apply: Apply,
        make: Make | None,
        shipping: Shipping | None,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Commit until `finish`, cancellation or failure; raises LogFailed."""
        self.running = True
        self.groups.open(apply, make, shipping)
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
        """Refuse further items, commit what is pending, and end `run`, or answer it without a
        `run`.
        """
        self._close()
        self._wake.set()
        if self.running:
            await self._stopped.wait()
        else:
            self._answer_pending(LogClosed("the log was closed before this was written"))

    def fail(self, exc: LogFailed) -> None:
        """Record that the disk cannot be trusted, and answer everything pending.

        The group that is being written is answered as soon as its thread returns.
        """
        failure = self.groups.failure = self.groups.failure or exc
        self._close()
        self._wake.set()
        self._answer_pending(failure)

    def _close(self) -> None:
        self._closing = True
        self.groups.queue.shut(self.groups.failure)

    async def _guard(self, task: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Run a task of `run`; if the disk dies under it, all tasks end."""
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
        """Rotate and open segments between groups until the end."""
        groups = self.groups
        while groups.crash is None:
            # Shielded, so that an entry that is in the file is applied and answered. Every step is
            # bounded by the disk.
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
            return  # after a failed sync the next one may wrongly succeed
        if self._rotations.due:
            await self._rotations.rotate()
        elif self.groups.queue.stuck:
            await self._open_next()

    async def _open_next(self) -> None:
        """Open a segment for the pending items, or refuse them if that fails."""
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
        """Wake the tending task if it has work, after a change at the queue."""
        if self._has_work() or self._rotations.deadline < self._asleep_until:
            self._wake.set()

    def _has_work(self) -> bool:
        """Whether a rotation, a failure or the end must be handled between two groups."""
        queue = self.groups.queue
        ended = self._closing and queue.empty
        return queue.stuck or ended or self.groups.crash is not None or self._rotations.due

    def _answer_pending(self, error: LogError) -> None:
        self._rotations.refuse(error)
        self.groups.answer_pending(error)
