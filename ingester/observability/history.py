"""Figures over time: rates over the last seconds, and the history of the last minutes.

    each write, query ─▶ :class:`RateCounter` ─▶ rates over 10 s and 60 s
    every STEP_S      ─▶ :class:`HistoryRing`, ``KEPT`` moments of ``FIGURES`` ─▶ /api/history

Memory is constant. The history takes figures that are counted anyway, so a write pays nothing for
it. Moments are kept by a monotonic clock and converted to wall time when they are read, so setting
the machine's clock does not distort them. Pure; ``RateCounter.add`` may be called from any thread,
the rest on the loop only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ingester.observability.status import History, Rates, RateSpans

STEP_S = 5.0
KEPT = 180
"""15 minutes."""
FIGURES = (
    "rows_per_s",
    "bytes_per_s",
    "operations_per_s",
    "queries_per_s",
    "refusals_per_s",
    "write_p50_s",
    "write_p99_s",
    "buffered_bytes",
    "memory_bytes",
    "resident_bytes",
    "queued_bytes",
    "log_bytes",
    "log_free_bytes",
    "oldest_unpersisted_s",
    "persisted_bytes_per_s",
    "store_requests_per_s",
    "store_failures_per_s",
    "streams",
    "errors",
    "alarms",
)
"""The series. Each value covers one step: ``_per_s`` is its average, ``errors`` counts the logged
warnings and errors, and latencies are those of its writes."""


class HistoryRing:
    """The last moments, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._at: deque[float] = deque(maxlen=kept)
        self._figures: deque[tuple[float | None, ...]] = deque(maxlen=kept)

    def add(self, at: float, figures: Mapping[str, float | None]) -> None:
        """Add a moment, and drop the oldest one if the ring is full.

        Args:
            at: monotonic seconds that include time asleep.
            figures: by names of ``FIGURES``; missing ones are unknown.
        """
        self._at.append(at)
        self._figures.append(tuple(_short(figures.get(name)) for name in FIGURES))

    def history(self, now: float, wall: float) -> History:
        """Return all moments.

        Args:
            now: the current time by the clock of ``add``.
            wall: the current time in seconds since 1970.
        """
        columns = list(zip(*self._figures, strict=True)) or [()] * len(FIGURES)
        return History(
            step_s=STEP_S,
            at=[
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall - (now - at)))
                for at in self._at
            ],
            series={name: list(column) for name, column in zip(FIGURES, columns, strict=True)},
        )


class TotalGrowth:
    """Turns growing totals into rates per second since the previous call."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._at: float | None = None

    def rates(self, now: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the rates by the same names; empty at the first call."""
        passed_s = 0.0 if self._at is None else now - self._at
        before, self._last, self._at = self._last, dict(totals), now
        if passed_s <= 0:
            return {}
        return {name: (totals[name] - before.get(name, 0.0)) / passed_s for name in totals}


def quantile(
    share: float, bounds: Sequence[float], before: Sequence[int], after: Sequence[int]
) -> float | None:
    """Estimate a quantile of the values that a histogram counted between two readings.

    Values are assumed to be spread evenly within a bucket; those beyond the last bound count as it.

    Args:
        share: from 0 to 1.
        bounds: upper bounds of the buckets, ascending.
        before, after: counts of each bucket and of the overflow, not cumulative.

    Returns:
        None if nothing was counted.
    """
    counts = [new - old for old, new in zip(before, after, strict=True)]
    wanted = share * sum(counts)
    if not any(counts):
        return None
    passed = 0.0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if count and passed + count >= wanted:
            return low + (high - low) * (wanted - passed) / count
        passed += count
    return bounds[-1]


def _short(figure: float | None) -> float | None:
    """Round to the digits that a plot can show, so that answers stay small."""
    return None if figure is None else float(f"{figure:.6g}")


SHORT_SPAN_S = 10
LONG_SPAN_S = 60

# One bucket more than the longest span: the current second.
_BUCKETS = LONG_SPAN_S + 1


class RateCounter:
    """Counts rows, bytes, operations and queries per second for the last minute.

    A rate is the average over whole past seconds, so that it does not drop at the start of each
    second; in the first seconds it is the average since the start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start counting now; ``clock`` returns monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = int(clock())
        self._second = [self._started_s - _BUCKETS] * _BUCKETS
        self._counts = [[0, 0, 0, 0] for _ in range(_BUCKETS)]

    def add(self, *, rows: int = 0, nbytes: int = 0, operations: int = 0, queries: int = 0) -> None:
        """Count an event at the current time."""
        second = int(self._clock())
        slot = second % _BUCKETS
        with self._lock:
            if self._second[slot] != second:
                self._second[slot] = second
                self._counts[slot] = [0, 0, 0, 0]
            counts = self._counts[slot]
            counts[0] += rows
            counts[1] += nbytes
            counts[2] += operations
            counts[3] += queries

    def spans(self) -> RateSpans:
        """Return the rates over the last 10 and the last 60 seconds."""
        return RateSpans(last_10s=self.over(SHORT_SPAN_S), last_60s=self.over(LONG_SPAN_S))

    def over(self, span_s: int) -> Rates:
        """Return the rates over the last ``span_s`` seconds, at most ``LONG_SPAN_S``."""
        now = int(self._clock())
        first = max(now - span_s, self._started_s)
        passed_s = now - first
        if passed_s <= 0:
            return Rates()
        totals = [0, 0, 0, 0]
        for second, counts in zip(self._second, self._counts, strict=True):
            if first <= second < now:
                totals = [total + count for total, count in zip(totals, counts, strict=True)]
        rows, nbytes, operations, queries = (total / passed_s for total in totals)
        return Rates(
            rows_per_s=rows,
            bytes_per_s=nbytes,
            operations_per_s=operations,
            queries_per_s=queries,
        )
