"""How many answers are worked on at a time: the others wait here, not for the interpreter lock.

Law of this file: whoever has a turn computes; whoever waits for a disk, a store or another thread
gives it back meanwhile. Two hundred readers that all compute would leave a write one turn of the
interpreter lock in two hundred.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MOMENT_S = 0.0002
"""Long enough for a waiting thread to get the interpreter lock."""


class Turns:
    """Turns to take, at most ``count`` at a time. Threads."""

    def __init__(self, count: int | None = None) -> None:
        """``count``: by default half of the processors, at least one."""
        # A queue and not a semaphore: those of the standard library are written in Python.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count or max(1, (os.cpu_count() or 1) // 2)):
            self._free.put(None)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have a turn inside the block."""
        self._free.get()
        try:
            yield
        finally:
            self._free.put(None)

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Let others have the turn inside the block. Only inside :meth:`taken`."""
        self._free.put(None)
        try:
            yield
        finally:
            self._free.get()

    def let_others(self) -> None:
        """Have others at it for a moment, in the middle of a long piece of work."""
        with self.given_back():
            time.sleep(_MOMENT_S)
