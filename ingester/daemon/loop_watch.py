"""Watches the event loop: whether it turns, and where it is blocked when it does not.

    each second ─▶ how late the loop was ─▶ kept for a minute, for the alarm ``loop-stalled``
                └▶ after DUMP_S without a turn, the stack of every thread goes to standard error
                     by a Python thread           while it writes, no frame changes
                     by a C thread, twice as late  if a call does not release the interpreter

What reports a blocked loop must not depend on it, nor end the process. ``faulthandler``'s C thread
takes no lock and could read a frame that another thread frees, so it runs only if the Python thread
could not.
"""

from __future__ import annotations

import faulthandler
import math
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from io import UnsupportedOperation

import structlog
import trio

log = structlog.get_logger(__name__)

TURN_S = 1.0
DUMP_S = 30.0
"""The time without a turn after which the stacks are written, and between two dumps."""
REMEMBERED_S = 60.0
TELL_S = 5.0
"""Shorter delays are not logged: they are common on a busy machine."""


class LoopWatch:
    """Turns with the loop. Loop only, except for its own thread.

    Args:
        dump_s: the time without a turn after which the stacks are written.
    """

    def __init__(self, dump_s: float = DUMP_S) -> None:
        self._dump_s = dump_s
        self._late: deque[tuple[float, float]] = deque()
        self._turned_at = trio.current_time()
        self._due = math.inf
        """When the stacks are written, by the monotonic clock."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    def turned(self) -> None:
        """Note that the loop turns; call every ``TURN_S``."""
        now = trio.current_time()
        late_s = now - self._turned_at - TURN_S
        self._turned_at = now
        while self._late and now - self._late[0][0] > REMEMBERED_S:
            self._late.popleft()
        if late_s > TURN_S:
            self._late.append((now, late_s))
        if late_s > TELL_S:
            log.warning("event loop stood still", seconds=round(late_s, 3), runbook="loop-stalled")
        self._put_off()
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Stop watching: the loop has ended."""
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    @property
    def turns(self) -> bool:
        """Whether the loop has turned within ``dump_s``."""
        return trio.current_time() - self._turned_at <= self._dump_s

    @property
    def late_s(self) -> float:
        """The longest time within the last minute for which the loop was blocked."""
        now = trio.current_time()
        late = (late_s for at, late_s in self._late if now - at <= REMEMBERED_S)
        return max(late, default=0.0)

    def _watch(self) -> None:
        while not self._ended.wait(min(self._dump_s, max(0.0, self._due - time.monotonic()))):
            if time.monotonic() >= self._due:
                self._put_off()
                with suppress(AttributeError, UnsupportedOperation, ValueError, OSError):
                    print(f"Timeout ({timedelta(seconds=self._dump_s)})!", file=sys.stderr)
                    sys.stderr.flush()
                    faulthandler.dump_traceback(sys.stderr)

    def _put_off(self) -> None:
        """Set both deadlines again. Without a file as standard error nothing is dumped."""
        self._due = time.monotonic() + self._dump_s
        with suppress(AttributeError, UnsupportedOperation, ValueError, OSError):
            faulthandler.dump_traceback_later(2 * self._dump_s, repeat=True, file=sys.stderr)
