"""Law: what is written comes to the loop in log order, each group once, and is applied there.

::

    who writes            book ─▶ came_back ─▶ tell, if it is due ─┐
    loop                                                           └▶ apply ─▶ on_done
    who reads                     wait_settled ────────────────────────▲

To wake the loop costs more than to apply a group, and whoever wakes it then waits for it to leave
the interpreter. While groups come it is not woken: it looks again by itself
(:mod:`wal.group_commit`), and is told of what is much, and of each group
where somebody has had to wait for one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from wal.entry import Entry
from wal.errors import LogError, LogFailed
from wal.group import Group
from wal.pending import answer

Apply = Callable[[Sequence[Entry]], None]
OnLoop = Callable[[Callable[[], None]], None]

_TURN = 16
"""Groups that are applied before others on the loop have their turn."""
_MUCH_BYTES = 8 << 20
"""So much is not left to when the loop looks again."""
_AT_ONCE_S = 0.5
"""After somebody has had to wait for what was not applied yet: others will come and ask."""
_LATER_GROUPS = 32
"""So many small groups are applied together at most."""


class ApplyQueue:
    """The groups that were written, or failed, and of which the loop does not know yet.

    Args:
        on_loop: has something called on the loop. Any thread.
        back: called on the loop with each group, and why it failed if it did; must not raise.
    """

    def __init__(self, on_loop: OnLoop, back: Callable[[Group, LogError | None], None]) -> None:
        self._on_loop = on_loop
        self._back = back
        self._came_back: deque[tuple[Group, LogError | None]] = deque()
        self._told = False
        self._looks_again = False
        """The loop does, soon, whether it is told or not."""
        self.woken = trio.Event()
        """It has to."""
        self.thread_writes = False
        """The append thread does, and tells the loop before it sleeps."""
        self._stored = self._handed_on = 0
        # Each has one thread that writes it.
        self._stored_bytes = self._taken_bytes = 0
        self._settling = threading.Condition()
        self._awaited = 0
        self._waited_for_at = -_AT_ONCE_S
        self.apply: Apply = lambda entries: None
        self.parted: LogFailed | None = None
        """The sink refused a group: it has less than the log for good. Any thread."""
        self.groups = 0
        self.records = 0

    # Who writes

    def came_back(self, group: Group, error: LogError | None) -> None:
        """One that is stored counts from now on: whoever then asks the loop finds it applied."""
        if error is None:
            self._stored += 1
        self._stored_bytes += group.end - group.start
        self._came_back.append((group, error))

    def tell_if_due(self, group: Group) -> None:
        """Tell the loop of a group before its writer has done all else, if it cannot wait."""
        much = self._stored_bytes - self._taken_bytes > _MUCH_BYTES
        # Who is answered on the loop does not wait for somebody else's answer.
        waited_for = not all(entry.on_stored for entry in group.entries)
        if much or waited_for or (self.thread_writes and self._too_many_wait()):
            self.tell_now()

    def _too_many_wait(self) -> bool:
        return (
            not self._looks_again
            or len(self._came_back) >= _LATER_GROUPS
            or time.monotonic() - self._waited_for_at < _AT_ONCE_S
        )

    def tell(self) -> None:
        """See that what was written is applied soon. Any thread."""
        if self._came_back and not self.thread_writes and self._too_many_wait():
            self.tell_now()

    def tell_now(self) -> None:
        """Have the loop catch up. Any thread."""
        # Cleared before the loop looks: whoever finds it set is seen.
        if not self._told:
            self._told = True
            self._on_loop(self._take_turn)

    # Who reads

    @property
    def settled(self) -> bool:
        """Whether everything that counts as written has been applied. Any thread."""
        return self._stored == self._handed_on

    def wait_settled(self, timeout_s: float) -> bool:
        """Whether what counts as written now is applied in time. Any thread but the loop's."""
        stored = self._stored
        if self._handed_on >= stored:
            return True
        self._waited_for_at = time.monotonic()
        self.tell_now()
        with self._settling:
            self._awaited += 1
            try:
                return self._settling.wait_for(lambda: self._handed_on >= stored, timeout_s)
            finally:
                self._awaited -= 1

    # The loop

    def _take_turn(self) -> None:
        """Catch up so far that others on the loop have their turn, however fast groups come."""
        self._told = False
        if not self._looks_again:
            self._looks_again = True
            self.woken.set()
        self._take_back(min(len(self._came_back), _TURN))
        if self._came_back:
            self.tell_now()

    def look_again(self) -> bool:
        """Catch up; whether there was something, and is to be looked for again."""
        if not self._came_back:
            # Cleared before the second look: whoever found it set is seen now.
            self._looks_again = False
            if not self._came_back:
                return False
            self._looks_again = True
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Apply and answer the groups that are written by now; not what comes meanwhile."""
        self._take_back(len(self._came_back))

    def _take_back(self, groups: int) -> None:
        for _ in range(groups):
            group, error = self._came_back.popleft()
            self._taken_bytes += group.end - group.start
            self._back(group, error)
        # Looked at after what they wait for: who counts itself later sees that it is there.
        if self._awaited:
            with self._settling:
                self._settling.notify_all()

    def hand_on(self, group: Group) -> None:
        """Apply a group and answer it. Atomic: no await, so that log order is the only order.

        Raises:
            LogFailed: `apply` did not take it. No later group is handed on, either.
        """
        if self.parted is not None:
            answer(group.entries, self.parted)
            return
        try:
            self.apply(group.entries)
        except BaseException as exc:
            # The log holds what the sink refuses: only a restart can make them agree again. Groups
            # that were written behind this one are not applied either.
            self.parted = LogFailed(f"the sink refused what the log already holds: {exc!r}")
            answer(group.entries, self.parted)
            raise self.parted from exc
        self.groups += 1
        self._handed_on += 1
        self.records += len(group.records)
        answer(group.entries, None)
