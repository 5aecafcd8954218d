"""The retry policy for an unreachable store, in a thread and in the event loop."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from persist.store import ObjectNotFound, StoreError, StoreFull, StoreRetry, StoreUnavailable
from persist.store.retry import Failures, retry, retry_async

SOON = StoreRetry(first_s=1e-9, cap_s=1e-9)
AWAY = StoreUnavailable("no answer")


class Store:
    """Raises ``errors`` one after another, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    def answer(self) -> str:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "here"

    async def answer_async(self) -> str:
        return self.answer()


def test_without_limits_it_retries_for_ever_with_waits_up_to_the_cap() -> None:
    failures = Failures(StoreRetry(first_s=0.1, cap_s=2.0), 0.0, Random(7))
    waits = [failures.wait_s(now=1e9) for _ in range(10_000)]
    assert all(wait is not None and 0 <= wait <= 2.0 for wait in waits)
    assert max(wait for wait in waits if wait is not None) > 1.9


def test_there_is_no_wait_after_the_last_attempt() -> None:
    failures = Failures(StoreRetry(first_s=0.1, cap_s=2.0, attempts=3), 0.0, Random(7))
    assert [failures.wait_s(now=0.0) is None for _ in range(3)] == [False, False, True]


def test_a_failure_after_the_time_is_the_last_one() -> None:
    failures = Failures(StoreRetry(first_s=0.1, cap_s=2.0, for_s=60.0), 100.0, Random(7))
    assert failures.wait_s(now=160.0) is not None
    assert failures.wait_s(now=160.1) is None


def test_every_failure_is_reported_and_then_the_answer_returned() -> None:
    store, told = Store(AWAY, StoreFull("disk")), list[str]()
    assert retry(store.answer, SOON, lambda error, _: told.append(str(error))) == "here"
    assert told == ["no answer", "disk"]


@pytest.mark.parametrize("error", [ObjectNotFound("x"), StoreError("odd name"), OSError("reset")])
def test_an_error_that_is_not_retried_is_raised_at_once(error: Exception) -> None:
    store = Store(AWAY, error)
    with pytest.raises(type(error)):
        retry(store.answer, SOON)
    assert store.asked == 2


def test_a_policy_can_retry_other_errors() -> None:
    store = Store(OSError("reset"), AWAY)
    policy = StoreRetry(first_s=1e-9, cap_s=1e-9, unreachable=(StoreError, OSError))
    assert retry(store.answer, policy) == "here"


def test_the_last_error_is_raised_and_not_reported_as_a_wait() -> None:
    store, told = Store(AWAY, AWAY, AWAY), list[Exception]()
    policy = StoreRetry(first_s=1e-9, cap_s=1e-9, attempts=3)
    with pytest.raises(StoreUnavailable):
        retry(store.answer, policy, lambda error, _: told.append(error))
    assert (store.asked, len(told)) == (3, 2)


def test_in_a_loop_it_waits_with_the_loops_sleep() -> None:
    store, slept, told = Store(AWAY, AWAY), list[float](), list[float]()

    async def sleep(seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        slept.append(seconds)

    async def main() -> str:
        policy = StoreRetry(first_s=1.0, cap_s=10.0)
        return await retry_async(
            store.answer_async, policy, lambda _, wait_s: told.append(wait_s), sleep=sleep
        )

    assert trio.run(main) == "here"
    assert len(slept) == 2
    assert slept == told


def test_a_wait_can_be_cancelled() -> None:
    store = Store(*[AWAY] * 10_000)

    async def main() -> bool:
        policy = StoreRetry(first_s=1.0, cap_s=10.0)
        with trio.move_on_after(3600) as scope:
            await retry_async(store.answer_async, policy, sleep=trio.sleep)
        return scope.cancelled_caught

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
