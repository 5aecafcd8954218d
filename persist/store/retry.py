"""The one retry policy for the store: which errors, how long to wait, and when to give up.

    attempt ──┬─▶ answered ─────────────────────────────────────▶ its result
       ▲      ├─▶ raised an error not in ``unreachable`` ───────▶ the error, at once
       │      └─▶ raised one of them ──┬─ attempts or seconds used up ─▶ the error
       └── wait: 0..ceiling, doubling ◀┘ otherwise; ``tell`` gets the error and the wait

``StoreRetry`` and ``Failures`` decide, without a clock and without sleeping; ``retry`` waits in a
thread and ``retry_async`` in any event loop (tests/persist/store/test_retry.py). The error is
released before the wait, because its frames may hold rows.

Only for calls that may be repeated: a write whose answer was lost may have happened.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from persist.backoff import Backoff
from persist.store.contract import StoreUnavailable

T = TypeVar("T")

Tell = Callable[[Exception, float], None]
"""Called with each error that is waited for, and the seconds to the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRetry:
    """How long a caller retries an unreachable store; for ever without limits."""

    first_s: float
    """The longest first wait; the ceiling doubles with every further one."""
    cap_s: float
    """The highest ceiling."""
    unreachable: tuple[type[Exception], ...] = (StoreUnavailable,)
    """The errors that are retried."""
    attempts: int | None = None
    """The most attempts in all."""
    for_s: float | None = None
    """A failure this many seconds after the first attempt is the last one."""


class Failures:
    """The failures of one call so far, and whether it is tried again. Not shared between
    threads.
    """

    def __init__(self, policy: StoreRetry, began: float, rng: Random) -> None:
        """Start before the first attempt; ``began`` is the time of any monotonic clock."""
        self._policy = policy
        self._began = began
        self._backoff = Backoff(policy.first_s, policy.cap_s, rng)
        self._count = 0

    def wait_s(self, now: float) -> float | None:
        """The seconds to wait after another failure, or None to give up."""
        self._count += 1
        policy = self._policy
        if policy.attempts is not None and self._count >= policy.attempts:
            return None
        if policy.for_s is not None and now - self._began > policy.for_s:
            return None
        return self._backoff.next_s()


def retry(call: Callable[[], T], policy: StoreRetry, tell: Tell | None = None) -> T:
    """The result of ``call``, retried by ``policy``. Blocks this thread.

    Raises:
        Exception: The last retried error when it gives up; any other error at once.
    """
    failures: Failures | None = None
    began = time.monotonic()
    while True:
        try:
            return call()
        except policy.unreachable as exc:
            failures = failures or _failures(policy, began)
            if (wait_s := failures.wait_s(time.monotonic())) is None:
                raise
            if tell is not None:
                tell(exc, wait_s)
        time.sleep(wait_s)


async def retry_async(
    call: Callable[[], Awaitable[T]],
    policy: StoreRetry,
    tell: Tell | None = None,
    *,
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """Retry as :func:`retry`, in the loop that ``sleep`` belongs to, which may cancel the wait."""
    failures: Failures | None = None
    began = time.monotonic()
    while True:
        try:
            return await call()
        except policy.unreachable as exc:
            failures = failures or _failures(policy, began)
            if (wait_s := failures.wait_s(time.monotonic())) is None:
                raise
            if tell is not None:
                tell(exc, wait_s)
        await sleep(wait_s)


def _failures(policy: StoreRetry, began: float) -> Failures:
    """Begin to count, at the first failure: seeding a generator takes longer than most calls."""
    return Failures(policy, began, Random())
