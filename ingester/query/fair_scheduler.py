"""The scheduler of answers: a few are worked on, others wait here and not for the interpreter.

Law of this file: whoever has a turn computes; whoever waits for a disk, a store or another thread
gives it back meanwhile. First come, first served: a turn that is given back is handed to whoever
has waited longest, and nobody overtakes, the giver included. Two hundred readers that all compute
would leave a write one turn of the interpreter lock in two hundred.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 0.01
"""The time that an answer is worked on before others have a turn, where no part comes of it."""
_MOMENT_S = 0.0002
"""The time in which a waiting thread gets the interpreter lock."""


class FairScheduler:
    """Hands out turns, at most ``count`` at a time. Threads."""

    def __init__(self, count: int | None = None) -> None:
        """``count`` is by default half of the processors, at least one."""
        self._free = count or max(1, (os.cpu_count() or 1) // 2)
        self._waiting: deque[threading.Lock] = deque()
        """Each who waits has a locked lock here, which a turn unlocks. Semaphores and conditions of
        the standard library are written in Python, and this is asked for every part."""
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of those who wait for a turn."""
        return len(self._waiting)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn inside the block."""
        self.take()
        try:
            yield
        finally:
            self.give()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Let others have the turn inside the block. Only inside :meth:`turn`."""
        self.give()
        try:
            yield
        finally:
            self.take()

    def take(self) -> None:
        """Have a turn until :meth:`give`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def give(self) -> None:
        """Give the turn to whoever has waited longest."""
        with self._lock:
            # Invariant: a turn is free only while nobody waits.
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class Pace:
    """Lets others have a turn in the middle of much work that no part comes of."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self.restart()

    def restart(self) -> None:
        """Count from now on: a turn has begun."""
        self._working_since = time.monotonic()

    def let_others(self) -> None:
        """Have others at it for a moment, if this answer was worked on for long."""
        if time.monotonic() - self._working_since > TURN_S:
            with self._scheduler.given_back():
                time.sleep(_MOMENT_S)
            self.restart()
