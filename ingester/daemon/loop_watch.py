"""The event loop, watched: whether it turns, and where it stands when it does not.

    each second ─▶ how late the loop was ─▶ kept for a minute, for the alarm ``loop-stalled``
                └▶ a timer of the process is set anew: DUMP_S without a turn, and the stack of every
                   thread goes to standard error

Law of this file: what tells of a loop that stands still must not need it. The timer is a thread of
C that takes no lock of Python's.
"""

from __future__ import annotations

import faulthandler
import sys
from collections import deque
from contextlib import suppress
from io import UnsupportedOperation

import structlog
import trio

log = structlog.get_logger(__name__)

TURN_S = 1.0
DUMP_S = 30.0
"""A loop that stands still for so long has its stacks written, and again after as long."""
REMEMBERED_S = 60.0
TELL_S = 5.0
"""A shorter time is not told in the log: a machine with much to do has such."""


class LoopWatch:
    """Turns with the loop. Loop only.

    Args:
        dump_s: the time without a turn after which the stacks are written.
    """

    def __init__(self, dump_s: float = DUMP_S) -> None:
        self._dump_s = dump_s
        self._late: deque[tuple[float, float]] = deque()
        self._turned_at = trio.current_time()

    def turned(self) -> None:
        """Take note that the loop turns; call it every ``TURN_S``."""
        now = trio.current_time()
        late_s = now - self._turned_at - TURN_S
        self._turned_at = now
        while self._late and now - self._late[0][0] > REMEMBERED_S:
            self._late.popleft()
        if late_s > TURN_S:
            self._late.append((now, late_s))
        if late_s > TELL_S:
            log.warning("event loop stood still", seconds=round(late_s, 3), runbook="loop-stalled")
        self._arm()

    @property
    def turns(self) -> bool:
        """Whether the loop has turned within the time in which it is not taken to stand still."""
        return trio.current_time() - self._turned_at <= self._dump_s

    @property
    def late_s(self) -> float:
        """The longest time within the last minute for which the loop has stood still."""
        now = trio.current_time()
        late = (late_s for at, late_s in self._late if now - at <= REMEMBERED_S)
        return max(late, default=0.0)

    def _arm(self) -> None:
        """Set the timer anew. A process whose standard error is no file goes without."""
        with suppress(AttributeError, UnsupportedOperation, ValueError, OSError):
            faulthandler.dump_traceback_later(self._dump_s, repeat=True, file=sys.stderr)


def disarm() -> None:
    """Take the timer away: the loop has ended."""
    faulthandler.cancel_dump_traceback_later()
