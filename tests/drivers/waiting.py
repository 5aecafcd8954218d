"""Polls for a condition where no event exists."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
EVERY_S = 0.02


def until(happened: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: It did not hold in time.
    """
    deadline = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(EVERY_S)
