"""Law: who was answered with the last group and comes back at once is in the next one.

A group costs nearly the same for one entry and for eight. Of eight clients that wait for each
answer three have come back when the last group's answers are out; the others are on their way, and
each would make a group of its own dearer for all. So the next group waits for those who went with
the last one, as long as one of them comes soon after the other. Where that fails more than once in
a row, the next waits are left out, twice as many each time: clients that think between two writes
are hardly ever waited for, however many others come meanwhile.

All of it under the lock that it is given.
"""

from __future__ import annotations

import threading
import time

WAIT_S = 0.0015
"""For the next one of them: several times what a client takes to come back that shares two
processors with seven others."""
MOST_S = 0.003
"""For all of them."""
ENOUGH = 16
"""Whoever they are, the next group is cheap enough for each of so many."""
MAX_LEFT_OUT = 256


class CommitDelay:
    """Knows who comes back. Under the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._here = set[object]()
        """Callers since the last group."""
        self._away = set[object]()
        """Callers that went with it and are not back."""
        self._went = 0
        self._came_at = 0.0
        """When the last one of them was back."""
        self._failed = False
        self._backoff = 0
        self._left_out = 0
        self._waits = False

    def arrived(self, caller: object) -> None:
        """Somebody has appended who appends nothing more before the answer."""
        self._here.add(caller)
        if caller in self._away:
            self._away.discard(caller)
            self._came_at = time.monotonic()
        if self._waits and self._complete:
            self._changed.notify()

    @property
    def _complete(self) -> bool:
        return not self._away or len(self._here) >= ENOUGH

    def went(self) -> None:
        """A group takes all who are here."""
        self._away, self._here = self._here, set()
        self._went = len(self._away)

    def leave(self) -> None:
        """Whoever waits goes on."""
        self._away.clear()
        self._went = 0
        self._changed.notify_all()

    def wait(self) -> None:
        """Let those come back who went with the last group, if that seems worth it."""
        if self._went < 2 or self._complete:
            return
        if self._left_out:
            self._left_out -= 1
            return
        failed_before, self._failed = self._failed, not self._are_back()
        if not self._failed:
            self._backoff //= 2
        elif failed_before:
            self._backoff = min(MAX_LEFT_OUT, 2 * self._backoff + 1)
            self._left_out = self._backoff

    def _are_back(self) -> bool:
        """Wait; whether all of them came, or enough others."""
        self._waits = True
        now = self._came_at = time.monotonic()
        last = now + MOST_S
        # Woken by the last of them alone; when the others came is looked at in between.
        while not self._complete and (left := min(self._came_at + WAIT_S, last) - now) > 0:
            self._changed.wait(left)
            now = time.monotonic()
        self._waits = False
        return self._complete
