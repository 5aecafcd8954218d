"""Failures of users' code in the daemon's log, with as much of the traceback as helps.

Law of this file: whoever sends the same bad batch again and again does not fill the log: of one
class one failure is told in :data:`EVERY_S`, and how many were not. An error that was told holds no
batch any more.
"""

from __future__ import annotations

import threading
import time
import traceback

import structlog

log = structlog.get_logger(__name__)

EVERY_S = 10.0
FRAMES = 5
MOST_CHARACTERS = 2000


class FailureLog:
    """Tells of failures, not too often. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}
        """When a failure of a class was told last, and how many came since."""

    def tell(self, event: str, name: str, error: BaseException) -> None:
        """Log that ``event`` happened to the class ``name``."""
        text = "".join(traceback.format_exception(error, limit=-FRAMES))[-MOST_CHARACTERS:]
        _let_go(error)
        now = time.monotonic()
        with self._lock:
            at, left_out = self._told.get(name, (-EVERY_S, 0))
            due = now - at >= EVERY_S
            self._told[name] = (now, 0) if due else (at, left_out + 1)
        if due:
            log.warning(
                event,
                transformer=name,
                error=text,
                left_out=left_out,
                runbook="transformer-failed",
            )


def _let_go(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
