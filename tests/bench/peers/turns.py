"""A fair lock for the writers of one process, for peers that admit one at a time.

The order is first come, first served. A plain lock favours the running thread, which may keep
another writer waiting for seconds.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that passes to the thread that has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiting threads."""
        return len(self._waiting)

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                # Invariant: the lock stays taken, by the thread that is admitted.
                self._waiting.popleft().release()
            else:
                self._taken = False
