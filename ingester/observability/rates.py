"""Rates over the last seconds, counted in buckets of one second.

Law: a rate is the mean over whole seconds that have passed, so that it does not sag at the start of
each second; before the first span is full it is the mean since the start. Memory is constant.

Pure; ``add`` may be called from any thread.
"""

import threading
from collections.abc import Callable

from ingester.observability.status import Rates, RateSpans

SHORT_SPAN_S = 10
LONG_SPAN_S = 60

# One bucket more than the longest span: the second that is still running.
_BUCKETS = LONG_SPAN_S + 1


class RateCounter:
    """Counts rows, bytes, operations and queries, and forgets them after a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start counting now; ``clock`` gives seconds that never run backwards."""
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = int(clock())
        self._second = [self._started_s - _BUCKETS] * _BUCKETS
        self._counts = [[0, 0, 0, 0] for _ in range(_BUCKETS)]

    def add(self, *, rows: int = 0, nbytes: int = 0, operations: int = 0, queries: int = 0) -> None:
        """Count what has just happened."""
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
        """Give the rates over the last 10 and the last 60 whole seconds."""
        return RateSpans(last_10s=self.over(SHORT_SPAN_S), last_60s=self.over(LONG_SPAN_S))

    def over(self, span_s: int) -> Rates:
        """Give the rates over so many whole seconds, ``LONG_SPAN_S`` at most."""
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
