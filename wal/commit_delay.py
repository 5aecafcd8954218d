"""Delays a group briefly for callers of the last group that return at once.

A group costs nearly the same for one entry and for eight. Of eight clients that wait for each
answer, three have returned when the last group's answers are out; without a delay the others would
each make a group of their own. The next group therefore waits for the callers of the last one, as
long as they arrive in quick succession. After two failed delays in a row the next ones are skipped,
twice as many each time, so clients that pause between writes are hardly ever waited for.
PostgreSQL's ``commit_delay`` waits a fixed time; this delay ends when the callers have arrived.

Everything here runs under the lock that it is given.
"""

from __future__ import annotations

import threading
import time

WAIT_S = 0.0015
"""The longest wait for the next caller: several times what a client needs to return when eight
share two processors.
"""
MOST_S = 0.003
"""The longest wait for all callers."""
ENOUGH = 16
"""This many callers end a delay, whichever they are: the group is cheap enough."""
MAX_SKIPPED = 256


class CommitDelay:
    """Tracks which callers return. Under the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self.wait_s = WAIT_S
        self.most_s = MOST_S
        self.callers = set[object]()
        """Callers since the last group."""
        self._missing = set[object]()
        """Callers of the last group that have not returned."""
        self._last_callers = 0
        self._arrived_at = 0.0
        """The time at which the last of them returned."""
        self.failed = False
        """Whether the last delay ended before its callers returned."""
        self.backoff = 0
        """About how many delays are skipped after the next failed one."""
        self.skips = 0
        """Delays still to be skipped."""
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
        """Note that a group takes all callers that have arrived."""
        self._missing, self.callers = self.callers, set()
        self._last_callers = len(self._missing)

    def leave(self) -> None:
        """End a wait, and expect no caller of the last group."""
        self._missing.clear()
        self._last_callers = 0
        self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the callers of the last group if that has paid off before."""
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
        """Wait; return whether all callers returned, or enough others arrived."""
        self.is_waiting = True
        now = self._arrived_at = time.monotonic()
        last = now + self.most_s
        # Only the last caller notifies; arrival times are checked at each time-out.
        while not self._complete and (left := min(self._arrived_at + self.wait_s, last) - now) > 0:
            self._changed.wait(left)
            now = time.monotonic()
        self.is_waiting = False
        return self._complete
