"""Law: every group that was formed is answered on the loop, in log order, whatever becomes of it.

::

    written ─▶ applied, answered                         (`wal.apply_queue`)
    refused ─▶ answered with the error, as is all that is pending behind it; writing goes on
    LogFailed, or `apply` raised, or the writer died ─▶ answered with the error; the run ends

Nobody's later entry may stand in the log where an earlier one of theirs was refused: that is why
what is pending behind a refused group is refused with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import trio

from wal.append_queue import AppendQueue
from wal.apply_queue import Apply, ApplyQueue
from wal.entry import Entry
from wal.errors import LogError, LogFailed
from wal.group import Group
from wal.group_writer import GroupWriter
from wal.pending import Item, Make, answer, refusal_of
from wal.segments import SegmentSet


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
