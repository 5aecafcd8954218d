"""Exponential backoff with full jitter. Pure: it computes waits and never sleeps.

Full jitter (uniform between zero and the ceiling) spreads clients that failed at the same moment
better than a fixed wait with a little noise; see "Exponential Backoff And Jitter", AWS Architecture
Blog, 2015.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """The waits of one series of attempts. Not shared between threads."""

    def __init__(self, first_s: float, cap_s: float, rng: Random) -> None:
        """Start a series whose first wait is at most ``first_s``, and no wait above ``cap_s``.

        Raises:
            ValueError: unless ``0 < first_s <= cap_s``.
        """
        if not 0 < first_s <= cap_s:
            raise ValueError(f"a backoff needs 0 < first_s <= cap_s, got {first_s} and {cap_s}")
        self._cap_s = cap_s
        self._rng = rng
        self._ceiling_s = first_s

    def next_s(self) -> float:
        """The wait before the next attempt, in seconds: uniform in [0, ceiling].

        The ceiling doubles with every call up to the cap.
        """
        wait_s = self._rng.uniform(0, self._ceiling_s)
        self._ceiling_s = min(self._ceiling_s * 2, self._cap_s)
        return wait_s
