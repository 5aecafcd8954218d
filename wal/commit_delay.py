"""Law: a group is delayed for callers who were answered with the last one and come back at once.

A group costs nearly the same for one entry and for eight. Of eight clients that wait for each
answer three have come back when the last group's answers are out; the others are on their way, and
each would make a group of its own dearer for all. So the next group waits for the callers of the
last one, as long as one of them comes soon after the other. Where that fails more than once in a
row, the next delays are left out, twice as many each time: clients that think between two writes
are hardly ever waited for, however many others come meanwhile. (PostgreSQL's ``commit_delay``
waits for a fixed time; this one ends as soon as they are there.)

Everything here runs under the lock that it is given.
"""

from __future__ import annotations

import threading
import time

WAIT_S = 0.0015
"""The longest wait for the next caller: several times what a client takes to come back that
shares two processors with seven others."""
MOST_S = 0.003
"""The longest wait for all callers."""
ENOUGH = 16
"""The callers, whichever they are, that end a delay: for so many a group is cheap enough."""
MAX_SKIPPED = 256


class CommitDelay:
    """Knows which callers come back. Under the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self.wait_s = WAIT_S
        self.most_s = MOST_S
        self.callers = set[object]()
        """Callers since the last group."""
        self._missing = set[object]()
        """Callers of the last group that are not back."""
        self._last_callers = 0
        self._arrived_at = 0.0
        """The time at which the last of them came back."""
        self.failed = False
        """Whether the last delay ended before its callers were back."""
        self.backoff = 0
        """Delays that are left out after the next one that fails, roughly."""
        self.skips = 0
        """Delays that are still to be left out."""
        self.is_waiting = False

    def arrived(self, caller: object) -> None:
        """Note a caller that has appended and appends nothing more before the answer."""
        self.callers.add(caller)
        if caller in self._missing:
            self._missing.discard(caller)
            self._arrived_at = time.monotonic()
        if self.is_waiting and self._complete:
            self._changed.notify()

    @property
    def _complete(self) -> bool:
        return not self._missing or len(self.callers) >= ENOUGH

    def group_drawn(self) -> None:
        """Note that a group takes everybody who has arrived."""
        self._missing, self.callers = self.callers, set()
        self._last_callers = len(self._missing)

    def leave(self) -> None:
        """End a wait, and expect nobody of the last group."""
        self._missing.clear()
        self._last_callers = 0
        self._changed.notify_all()

    def wait(self) -> None:
        """Let the callers of the last group come back, if that seems worth it."""
        if self._last_callers < 2 or self._complete:
            return
        if self.skips:
            self.skips -= 1
            return
        failed_before, self.failed = self.failed, not self._are_back()
        if not self.failed:
            self.backoff //= 2
        elif failed_before:
            self.backoff = min(MAX_SKIPPED, 2 * self.backoff + 1)
            self.skips = self.backoff

    def _are_back(self) -> bool:
        """Wait, and return whether all of them came, or enough others."""
        self.is_waiting = True
        now = self._arrived_at = time.monotonic()
        last = now + self.most_s
        # Woken by the last of them alone; when the others came is looked at in between.
        while not self._complete and (left := min(self._arrived_at + self.wait_s, last) - now) > 0:
            self._changed.wait(left)
            now = time.monotonic()
        self.is_waiting = False
        return self._complete
