"""A token bucket that may owe: so much in a second, as a mean, in pieces of any size.

    balance   burst ┤ full: nothing was taken for a second
                  0 ┤ above it, a piece of any size passes, and is taken off
                    ┤ below it, nothing passes until so much has flowed in

Law of this file: pure; the clock is the caller's. A piece is never refused for its size, so that
none waits for ever; the mean holds because what it was too large is owed.
"""

from __future__ import annotations

BURST_S = 1.0
"""The bucket holds what flows in within this time."""


class TokenBucket:
    """The balance of one bucket. Its owner locks.

    Args:
        rate: flows in, each second; 0 is a bucket that never refuses.
    """

    __slots__ = ("_at", "_balance", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._balance = rate * BURST_S
        self._at = now

    def wait_s(self, now: float) -> float:
        """The seconds until something passes; 0 if it passes now."""
        if not self.rate:
            return 0.0
        self._refill(now)
        # Half a token, or it would come back to a balance of just nothing.
        return 0.0 if self._balance > 0 else (0.5 - self._balance) / self.rate

    def take(self, amount: float, now: float) -> None:
        """Take so much, which may leave the bucket owing."""
        if self.rate:
            self._refill(now)
            self._balance -= amount

    def set_rate(self, rate: int, now: float) -> None:
        """Have another rate from now on; what is owed stays owed, what is left is kept in part."""
        self._refill(now)
        if not self.rate or not rate:
            self._balance = rate * BURST_S
        self.rate = rate
        self._balance = min(self._balance, rate * BURST_S)

    def _refill(self, now: float) -> None:
        flown = max(0.0, now - self._at) * self.rate
        self._balance = min(self._balance + flown, self.rate * BURST_S)
        self._at = max(self._at, now)
