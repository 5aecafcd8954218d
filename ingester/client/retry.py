"""The retry policy. Pure: clock, sleep and random numbers are the caller's.

Delays double from ``first_delay_s`` up to ``max_delay_s``. Each is shortened by a random part, so
that clients refused together do not return together. The daemon's ``retry_after_s`` is a lower
bound.
"""

from collections.abc import Callable

import msgspec

from .errors import TRANSIENT_CODES, ClientError, InvalidRequest, TimedOut, Unavailable, Unreachable


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long transient errors are retried. ``for_s=0`` never retries.

    ``for_s`` counts from the first failure since the last progress.
    """

    for_s: float = 30.0
    first_delay_s: float = 0.05
    max_delay_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises InvalidRequest if a field is not a duration."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise InvalidRequest(f"RetryPolicy({name}={value!r}): expected seconds, at least 0")

    def delay_s(self, failures: int, error: ClientError, fraction: float) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (from 1).

        ``fraction`` is random in 0..1 and shortens the delay by up to half.
        """
        # The exponent is bounded: 2.0 ** 2000 overflows.
        grown = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failures - 1, 60))
        jittered = grown * (1 - fraction / 2)
        if error.retry_after_s is not None:
            return max(jittered, error.retry_after_s * (1 + fraction / 4))
        return jittered


NEVER = RetryPolicy(for_s=0.0)


def is_retryable(error: ClientError) -> bool:
    """Whether the same request may succeed later; it need not be safe to repeat."""
    if isinstance(error, Unavailable):
        return error.code in TRANSIENT_CODES
    return isinstance(error, Unreachable | TimedOut)


class RetryState:
    """Failures in a row and when they began. The owner locks."""

    def __init__(self, policy: RetryPolicy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._failures = 0
        self._began = 0.0

    def progressed(self) -> None:
        """Forget earlier failures."""
        self._failures = 0

    def failed(self, error: ClientError, now: float) -> float | None:
        """Seconds to wait before the next try; None if there is none.

        ``now`` is any monotonic clock in seconds.
        """
        if not is_retryable(error):
            return None
        if not self._failures:
            self._began = now
        self._failures += 1
        delay = self._policy.delay_s(self._failures, error, self._random())
        return delay if now + delay - self._began <= self._policy.for_s else None
