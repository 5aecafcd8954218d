"""Law: what waits is written, synced, applied and answered together, in one order, by one task.

::

    append -> pending -> [form group] -> write + sync (thread) -> apply -> on_done
                 ^                            |
                 +---- the next group forms --+

There is no delay: a group is whatever waits when the one before it is through. Under "commit"
nothing is applied or answered before its sync returned. Whoever appended is answered exactly
once, whatever becomes of the log: when a group fails, when the disk dies, when `run` is
cancelled. An owner that dies answers everyone who waits on it first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import trio

from wal.entry import Entry
from wal.errors import LogClosed, LogError, LogFailed, LogFull, LogWriteFailed
from wal.group import Group, form_group
from wal.segment import OpenSegment
from wal.segments import SegmentSet
from wal.settings import LogSettings

Apply = Callable[[Sequence[Entry]], None]


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
    """The queue before the log and the task that empties it. Everything is on the loop."""

    def __init__(self, segments: SegmentSet, settings: LogSettings) -> None:
        self._segments = segments
        self._settings = settings
        # Not bounded here: admission bounds the bytes in flight before they come this far.
        self._pending: deque[Entry] = deque()
        self._group: Group | None = None
        self._rotation: _Rotation | None = None
        self._wake = trio.Event()
        self._dirty = trio.Event()
        self._stopped = trio.Event()
        self._closing = False
        self._age_retry_at = 0.0
        self.running = False
        self.failure: LogFailed | None = None
        self.pending_bytes = 0
        self.groups = 0
        self.records = 0
        self.failed_groups = 0

    @property
    def pending(self) -> int:
        """Entries that no group has taken yet."""
        return len(self._pending)

    @property
    def unbooked_bytes(self) -> int:
        """What waits for a group, and what is being written."""
        group = self._group
        return self.pending_bytes + (0 if group is None else group.end - group.start)

    def append(self, entry: Entry) -> None:
        """Queue an entry. LogClosed when nothing is taken any more: it is not answered then."""
        if self._closing:
            raise LogClosed("the log is closed") from self.failure
        self._pending.append(entry)
        self.pending_bytes += entry.stored_bytes
        self._wake.set()

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

    async def run(self, apply: Apply, task_status: trio.TaskStatus[None]) -> None:
        """Commit until `finish`, cancellation or failure. LogFailed ends the process."""
        self.running = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._segments.prepare_ahead, nursery)
                if self._settings.fsync == "interval":
                    nursery.start_soon(self._guard, self._sync_by_timer, nursery)
                task_status.started()
                await self._guard(partial(self._commit, apply), nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.running = False
            self._closing = True
            self._answer_everyone(LogClosed("the log stopped before it could answer"))
            self._stopped.set()
        if self.failure is not None:
            raise self.failure

    async def finish(self) -> None:
        """Refuse what comes, commit what waits, end `run`; without a `run`, answer what waits."""
        self._closing = True
        self._wake.set()
        if self.running:
            await self._stopped.wait()
        else:
            self._answer_everyone(LogClosed("the log was closed before this was written"))

    def fail(self, exc: LogFailed) -> None:
        """Take note that the disk cannot be trusted, and answer everyone who waits for a group.

        The group that is being written is answered as soon as its thread is back.
        """
        self.failure = self.failure or exc
        self._closing = True
        self._wake.set()
        self._answer_waiting(self.failure)

    async def _guard(self, task: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
        """Run a task of `run`; if the disk dies under it, all of them end."""
        try:
            await task()
        except LogFailed as exc:
            self.fail(exc)
            nursery.cancel_scope.cancel()

    async def _sync_by_timer(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            await trio.sleep(self._settings.fsync_interval_s)
            await self._segments.sync()

    async def _commit(self, apply: Apply) -> None:
        while not (self._closing and not self._pending):
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._wait_for_work()
            # What has been started is brought to its end: an entry that is in the file is applied
            # and answered. Every step in here is bounded by the disk.
            with trio.CancelScope(shield=True):
                if self._rotation is not None or self._too_old():
                    await self._rotate()
                if self._pending:
                    await self._commit_group(apply)

    async def _wait_for_work(self) -> None:
        while not (self._pending or self._closing or self._rotation or self._too_old()):
            with trio.move_on_at(self._age_deadline()):
                await self._wake.wait()
            self._wake = trio.Event()

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

    async def _commit_group(self, apply: Apply) -> None:
        """Write, apply and answer one group."""
        try:
            segment = await self._segments.require_open()
            group = self._form(segment)
            if self._pending and not group.entries:
                await self._segments.rotate()
                group = self._form(await self._segments.require_open())
        except (LogFull, LogWriteFailed) as exc:
            self.failed_groups += 1
            self._answer_waiting(exc)
            return
        if not group.entries:
            return  # whoever waited was answered while the segment was opened
        try:
            await self._segments.append(group, sync=self._settings.fsync == "commit")
        except LogError as exc:
            self.failed_groups += 1
            self._answer_group(exc)
            if isinstance(exc, LogFailed):
                raise
            # Nobody's later entry may stand where an earlier one of theirs was refused.
            self._answer_waiting(exc)
            return
        self._dirty.set()
        if self.failure is not None:
            self._answer_group(self.failure)
            return
        self._apply(apply, group)

    def _form(self, segment: OpenSegment) -> Group:
        """The next group; from here until it is answered, it is this task that answers for it."""
        group = self._group = form_group(self._pending, segment.ledger)
        self.pending_bytes -= sum(entry.stored_bytes for entry in group.entries)
        return group

    def _apply(self, apply: Apply, group: Group) -> None:
        """Hand a group on and answer it. Atomic: no await, so that log order is the only order."""
        try:
            apply(group.entries)
        except Exception as exc:
            # The log holds what the sink refuses: only a restart can make them agree again.
            failure = LogFailed(f"the sink refused what the log already holds: {exc!r}")
            self._answer_group(failure)
            raise failure from exc
        self.groups += 1
        self.records += len(group.records)
        self._answer_group(None)

    def _answer_group(self, error: LogError | None) -> None:
        group, self._group = self._group, None
        if group is not None:
            _answer(group.entries, error)

    def _answer_waiting(self, error: LogError) -> None:
        waiting, self._pending = self._pending, deque()
        self.pending_bytes = 0
        rotation, self._rotation = self._rotation, None
        if rotation is not None:
            rotation.answer(error)
        _answer(waiting, error)

    def _answer_everyone(self, error: LogError) -> None:
        try:
            self._answer_group(error)
        finally:
            self._answer_waiting(error)


def _answer(entries: Iterable[Entry], error: LogError | None) -> None:
    """Answer every entry; the first exception that a callback raised comes out afterwards."""
    raised: Exception | None = None
    for entry in entries:
        if entry.on_done is not None:
            try:
                entry.on_done(entry, error)
            except Exception as exc:
                raised = raised or exc
    if raised is not None:
        raise raised
