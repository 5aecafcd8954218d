"""Law: who was answered with the last group and comes back at once is in the next one.

A group costs nearly the same for one entry and for eight. Of eight clients that wait for each
answer three have come back when the last group's answers are out; the others are on their way, and
each would make a group of its own dearer for all. So the next group waits for as many as the last
one had, for a time in which a client on the same machine is back. Where a third of them do
not come in that time, the next waits are left out, twice as many each time: clients that think
between two writes are hardly ever waited for.

All of it under the lock that it is given.
"""

from __future__ import annotations

import threading

WAIT_S = 0.0015
"""Several times what a client takes that shares two processors with seven others."""
MAX_LEFT_OUT = 256


class Company:
    """Knows how many callers come back. Under the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._here = 0
        """Callers since the last group."""
        self._expected = 0
        """Callers that went with it."""
        self._backoff = 0
        self._left_out = 0
        self._waits = False

    def arrived(self) -> None:
        """Somebody has appended who appends nothing more before the answer."""
        self._here += 1
        if self._waits and self._here >= self._expected:
            self._changed.notify()

    def went(self) -> None:
        """A group takes all who are here."""
        self._expected, self._here = self._here, 0

    def leave(self) -> None:
        """Whoever waits goes on."""
        self._expected = 0
        self._changed.notify_all()

    def wait(self) -> None:
        """Let those come back who went with the last group, if that seems worth it."""
        if self._expected < 2 or self._here >= self._expected:
            return
        if self._left_out:
            self._left_out -= 1
            return
        self._waits = True
        self._changed.wait_for(lambda: self._here >= self._expected, WAIT_S)
        self._waits = False
        if 3 * self._here > 2 * self._expected:
            self._backoff //= 2
        else:
            self._backoff = min(MAX_LEFT_OUT, 2 * self._backoff + 1)
            self._left_out = self._backoff
