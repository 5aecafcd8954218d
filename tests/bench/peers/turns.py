"""Whose turn it is among the writers of one process, where a peer lets one in at a time.

Law of this file: first come, first served. A plain lock goes to whoever runs, which may keep
another writer waiting for seconds.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that is handed to whoever has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
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
                # Invariant: it stays taken, by the one who is let in.
                self._waiting.popleft().release()
            else:
                self._taken = False
