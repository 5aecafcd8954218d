"""The threads that gRPC may have: as many as calls are let in, and a number for those that wait.

    a call comes ── no thread is left ── gRPC refuses it by itself
       └─ a thread of gRPC's ── waits for the interpreter ── its token is read ── let in, or refused

A call has its thread from the start, and the one interpreter reads its token. Some thousand threads
that wait for it have all others wait, for a minute after the last call came: strangers need no more
than calls without a token. So the limit of threads follows the calls that are let in, and is
``waiting`` above them. What gRPC refuses takes neither a thread nor the interpreter.

Law of this file: it runs for each call: a lock and a comparison, but for one call in ``STEP``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

STEP = 64
LEAST_WAITING, WAITING_SHARE = 64, 16
"""So many calls may wait, or a share of all that there may be. With four times as many, others
waited twice as long for the interpreter in a flood."""


class CallRoom:
    """The calls of one server that are let in. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._let_in = self._most = 0
        self._limit: Callable[[int], object] | None = None
        self._limited = 0

    @property
    def let_in(self) -> int:
        """The calls under way that are let in."""
        return self._let_in

    def bound(self, most: int, limit: Callable[[int], object]) -> None:
        """Have the limit of threads follow the calls from now on.

        Args:
            most: ``limits.calls``.
            limit: sets the limit; may be called by any thread.
        """
        with self._lock:
            self._most, self._limit = most, limit
            self._follow()

    def enter(self) -> None:
        """Count a call that is let in."""
        with self._lock:
            self._let_in += 1
            self._follow()

    def leave(self) -> None:
        """Count it no more: it is over."""
        with self._lock:
            self._let_in -= 1
            self._follow()

    def _follow(self) -> None:
        if self._limit is None:
            return
        waiting = max(LEAST_WAITING, self._most // WAITING_SHARE)
        threads = min(self._most, (self._let_in // STEP + 1) * STEP + waiting)
        if threads != self._limited:
            self._limited = threads
            self._limit(threads)
