"""Law: what is written comes to the loop in log order, each group once, and is applied there.

::

    the writer            book ─▶ add ─▶ tell, if it is due ──┐
    the loop                                                  └▶ apply ─▶ on_done
    a reader              wait_settled ──────────────────────────▲

To wake the loop costs more than to apply a group, and whoever wakes it then waits for it to leave
the interpreter. While groups come it is not woken: it looks again by itself every `LOOK_AGAIN_S`.
It is told at once of many bytes, of a group whose appender is answered on the loop, and of each
group for some time after a reader has had to wait for one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from wal.append_queue import answer
from wal.entry import Entry
from wal.errors import LogError, LogFailed
from wal.group import Group

Apply = Callable[[Sequence[Entry]], None]
Soon = Callable[[Callable[[], None]], None]

CATCH_UP_S = 0.5
"""The time after which the loop looks for groups although it was not woken."""
LOOK_AGAIN_S = 0.02
"""The period at which the loop looks for groups while they come, instead of being woken."""
_TURN = 16
"""Groups that are applied before others on the loop have their turn."""
_MUCH_BYTES = 8 << 20
"""The loop is told at once of more bytes than this."""
AT_ONCE_S = 0.5
"""The time for which the loop is told of each group after a reader had to wait for one."""
_LATER_GROUPS = 32
"""The loop is told at once of more groups than this."""


class ApplyQueue:
    """The groups that were written, or failed, and of which the loop does not know yet.

    Args:
        soon: has something called on the loop. Any thread.
        answer_group: called on the loop with each group, and why it failed if it did; must not
            raise.
    """

    def __init__(self, soon: Soon, answer_group: Callable[[Group, LogError | None], None]) -> None:
        self._soon = soon
        self._answer_group = answer_group
        self._written: deque[tuple[Group, LogError | None]] = deque()
        self._told = False
        self._looks_again = False
        """Whether the loop looks soon, told or not."""
        self._woken = trio.Event()
        """Whether the loop has to begin to look again."""
        self.thread_writes = False
        """Whether the log's own thread writes; it tells the loop before it sleeps."""
        # Groups that were stored, and those of them that are applied.
        self._stored = self._applied = 0
        # Each has one thread that writes it.
        self._added_bytes = self._taken_bytes = 0
        self._settling = threading.Condition()
        self._readers = 0
        self._waited_for_at = -AT_ONCE_S
        self.apply: Apply = lambda entries: None
        self.parted: LogFailed | None = None
        """The sink refused a group: it has less than the log for good. Any thread."""
        self.applied_between_ns = (0, 0)
        """The times at which the group that is applied began to be written, and was stored."""
        self.groups = 0
        self.records = 0

    # The writer

    def add(self, group: Group, error: LogError | None) -> None:
        """Queue a group. One that is stored counts from now on: whoever asks finds it applied."""
        if error is None:
            self._stored += 1
        self._added_bytes += group.end - group.start
        self._written.append((group, error))

    def tell_if_due(self, group: Group) -> None:
        """Tell the loop of a group before its writer has done all else, if it cannot wait."""
        much = self._added_bytes - self._taken_bytes > _MUCH_BYTES
        # Whoever is answered on the loop does not wait for somebody else's answer.
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
        """See that what was written is applied soon. Any thread."""
        if self._written and not self.thread_writes and self._cannot_wait():
            self.tell_now()

    def tell_now(self) -> None:
        """Have the loop catch up. Any thread."""
        # Cleared before the loop looks: whoever finds it set is seen.
        if not self._told:
            self._told = True
            self._soon(self._take_turn)

    # A reader

    @property
    def settled(self) -> bool:
        """Whether everything that counts as written has been applied. Any thread."""
        return self._stored == self._applied

    def wait_settled(self, timeout_s: float) -> bool:
        """Whether what counts as written now is applied in time. Any thread but the loop's."""
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
        """Apply what is written without being told of each group, as long as more of them come.

        Nobody's rows wait for a thread that writes and does not come to `tell` of it. Runs for
        ever.
        """
        while True:
            with trio.move_on_after(CATCH_UP_S):
                await self._woken.wait()
            self._woken = trio.Event()
            await trio.sleep(LOOK_AGAIN_S)
            while self._look_again():
                await trio.sleep(LOOK_AGAIN_S)

    def _look_again(self) -> bool:
        """Catch up; return whether the loop is to look again, as there was something."""
        if not self._written:
            # Cleared before the second look: whoever found it set is seen now.
            self._looks_again = False
            if not self._written:
                return False
            self._looks_again = True
        self.catch_up()
        return True

    def _take_turn(self) -> None:
        """Catch up so far that others on the loop have their turn, however fast groups come."""
        self._told = False
        if not self._looks_again:
            self._looks_again = True
            self._woken.set()
        self._take(min(len(self._written), _TURN))
        if self._written:
            self.tell_now()

    def catch_up(self) -> None:
        """Apply and answer the groups that are written by now; not what comes meanwhile."""
        self._take(len(self._written))

    def _take(self, groups: int) -> None:
        for _ in range(groups):
            group, error = self._written.popleft()
            self._taken_bytes += group.end - group.start
            self._answer_group(group, error)
        # Looked at after what they wait for: who counts itself later sees that it is there.
        if self._readers:
            with self._settling:
                self._settling.notify_all()

    def apply_group(self, group: Group) -> None:
        """Apply a group and answer it. Atomic: no await, so that log order is the only order.

        Raises:
            LogFailed: `apply` did not take it. No later group is applied, either.
        """
        if self.parted is not None:
            answer(group.entries, self.parted)
            return
        self.applied_between_ns = (group.began_ns, group.stored_ns)
        try:
            self.apply(group.entries)
        except BaseException as exc:
            # The log holds what the sink refuses: only a restart can make them agree again. Groups
            # that were written behind this one are not applied either.
            self.parted = LogFailed(f"the sink refused what the log already holds: {exc!r}")
            answer(group.entries, self.parted)
            raise self.parted from exc
        self.groups += 1
        self._applied += 1
        self.records += len(group.records)
        answer(group.entries, None)
