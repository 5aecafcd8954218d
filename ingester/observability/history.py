"""The last minutes of the daemon, as figures of one moment every few seconds.

Law of this file: memory is constant, ``KEPT`` moments of ``FIGURES``. A figure is taken from what
is counted anyway: nothing is added to the way of a write. Moments are kept by a clock that only
runs forwards and are told by the machine's clock of now, so that one that was set says of no moment
that it was an hour ago. Pure; loop only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ingester.observability.standing import History

STEP_S = 5.0
KEPT = 180
"""A quarter of an hour."""
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
"""The series. Those that end in ``_per_s`` are means over the step, ``errors`` are the warnings and
errors that the log had in it, and the latencies are those of the writes in it."""


class HistoryRing:
    """The moments that are kept, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._at: deque[float] = deque(maxlen=kept)
        self._figures: deque[tuple[float | None, ...]] = deque(maxlen=kept)

    def add(self, at: float, figures: Mapping[str, float | None]) -> None:
        """Keep the figures of a moment; the oldest one goes where there is no room.

        Args:
            at: seconds that never run backwards, also while the machine sleeps.
            figures: by names of ``FIGURES``; what is not there is not known.
        """
        self._at.append(at)
        self._figures.append(tuple(_short(figures.get(name)) for name in FIGURES))

    def tell(self, now: float, wall: float) -> History:
        """Return all that is kept.

        Args:
            now: the moment of now, by the clock of ``add``.
            wall: the same in seconds since 1970.
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


class Growth:
    """Makes rates of totals that only grow: what came since the last look, for each second."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._at: float | None = None

    def rates(self, now: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the rates since the last call by the same names; none at the first one."""
        passed_s = 0.0 if self._at is None else now - self._at
        before, self._last, self._at = self._last, dict(totals), now
        if passed_s <= 0:
            return {}
        return {name: (totals[name] - before.get(name, 0.0)) / passed_s for name in totals}


def quantile(
    share: float, bounds: Sequence[float], before: Sequence[int], after: Sequence[int]
) -> float | None:
    """Return about the value below which a share of what was counted between two looks lies.

    Within a bucket values are taken to lie evenly; beyond the last bound they count as that.

    Args:
        share: from 0 to 1.
        bounds: upper bounds of the buckets, ascending.
        before, after: counts of each bucket and of what is beyond, not cumulative.

    Returns:
        None where nothing was counted.
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
    """A figure with as many digits as a plot can show: answers stay small."""
    return None if figure is None else float(f"{figure:.6g}")
