"""What hooks have been asked and have said, by class and method, since the process began.

Law of this file: labels are bounded, by the configured classes and the fifteen methods. Any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

import msgspec

Outcome = Literal["proceed", "abort", "wait", "rollback", "failed", "timed_out"]


class HookCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one method of one class; times are seconds in all."""

    hook: str
    method: str
    calls: int
    outcomes: dict[str, int]
    """How often a call ended so: the four decisions, ``failed`` and ``timed_out``."""
    queued_s: float
    running_s: float

    def text(self) -> str:
        """Return the counts as a line."""
        ends = ", ".join(f"{count} {ended}" for ended, count in sorted(self.outcomes.items()))
        return (
            f"hook {self.hook}: {self.method}: {self.calls} calls ({ends}),"
            f" {self.queued_s:.3f} s in the queue, {self.running_s:.3f} s running"
        )


class HookTally:
    """Counts the calls of hooks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[tuple[str, str], Counter[str]] = {}
        self._seconds: dict[tuple[str, str], tuple[float, float]] = {}

    def add(
        self, hook: str, method: str, outcome: Outcome, queued_s: float, running_s: float
    ) -> None:
        """Count a call that has ended, or was given up."""
        key = (hook, method)
        with self._lock:
            self._outcomes.setdefault(key, Counter())[outcome] += 1
            queued, running = self._seconds.get(key, (0.0, 0.0))
            self._seconds[key] = (queued + queued_s, running + running_s)

    def statistics(self) -> list[HookCounts]:
        """Return all counts, by class and method."""
        with self._lock:
            return [
                HookCounts(
                    hook=hook,
                    method=method,
                    calls=outcomes.total(),
                    outcomes=dict(outcomes),
                    queued_s=self._seconds[hook, method][0],
                    running_s=self._seconds[hook, method][1],
                )
                for (hook, method), outcomes in sorted(self._outcomes.items())
            ]
