"""A token bucket that may owe: an average rate, for amounts of any size.

    balance   burst ┤ full: nothing was taken for a second
                  0 ┤ above it, an amount of any size passes and is subtracted
                    ┤ below it, nothing passes until enough has flowed in

No amount is refused for its size; the average holds because the excess is owed. Pure: the clock is
the caller's.
"""

from __future__ import annotations

BURST_S = 1.0
"""The bucket holds what flows in within this time."""


class TokenBucket:
    """The balance of one bucket. Its owner locks.

    Args:
        rate: tokens per second; a bucket with rate 0 refuses nothing.
    """

    __slots__ = ("_at", "_balance", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._balance = rate * BURST_S
        self._at = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until something passes; 0 if it passes now."""
        if not self.rate:
            return 0.0
        self._refill(now)
        # Half a token, or it would come back to a balance of just nothing.
        return 0.0 if self._balance > 0 else (0.5 - self._balance) / self.rate

    def take(self, amount: float, now: float) -> None:
        """Subtract an amount; the balance may become negative."""
        if self.rate:
            self._refill(now)
            self._balance -= amount

    def set_rate(self, rate: int, now: float) -> None:
        """Change the rate; debts remain, credit is capped."""
        self._refill(now)
        if not self.rate or not rate:
            self._balance = rate * BURST_S
        self.rate = rate
        self._balance = min(self._balance, rate * BURST_S)

    def _refill(self, now: float) -> None:
        flown = max(0.0, now - self._at) * self.rate
        self._balance = min(self._balance + flown, self.rate * BURST_S)
        self._at = max(self._at, now)
