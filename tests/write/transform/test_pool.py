"""User code runs in threads that can be abandoned when it hangs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from ingester.errors import Saturated, TooSlow
from ingester.write.transform.pool import MOST_HUNG, GivenUp, TransformPool, UserCodeFailed
from tests.drivers.waiting import until as wait_until


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """An event that hanging calls wait for, set after the test."""
    event = threading.Event()
    yield event
    event.set()


def hang(pool: TransformPool, name: str, released: threading.Event) -> None:
    with pytest.raises(GivenUp):
        pool.run(name, released.wait, timeout_s=0.02)


def test_a_call_returns_what_its_work_does_and_threads_are_used_again() -> None:
    pool = TransformPool(2, 10.0)
    threads = {pool.run("a", threading.get_ident) for _ in range(20)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_a_call_raises_is_its_caller_s(error: BaseException) -> None:
    def work() -> None:
        raise error

    pool = TransformPool(2, 10.0)
    with pytest.raises(UserCodeFailed) as caught:
        pool.run("a", work)
    assert caught.value.error is error
    assert pool.run("a", lambda: 1) == 1


def test_a_call_that_takes_too_long_is_given_up_and_told_of_when_it_returns(
    released: threading.Event,
) -> None:
    pool = TransformPool(2, 30.0)
    late: list[object] = []

    def work() -> str:
        released.wait()
        return "late"

    with pytest.raises(GivenUp) as caught:
        pool.run("a", work, late=late.append, timeout_s=0.05)
    assert "a: no answer within 0.05 s" in caught.value.refusal.message
    assert pool.statistics() == (0, {"a": 1})
    released.set()
    wait_until(lambda: pool.statistics() == (0, {}), "the calls")
    assert late == ["late"]


def test_after_two_that_hang_no_more_of_a_class_are_begun_until_one_returns(
    released: threading.Event,
) -> None:
    pool = TransformPool(2, 30.0)
    one = threading.Event()
    hang(pool, "a", one)
    hang(pool, "a", released)
    with pytest.raises(TooSlow, match="a: 2 calls of it hang"):
        pool.run("a", lambda: 1)
    assert pool.run("b", lambda: 1) == 1, "another class goes on"
    one.set()
    wait_until(lambda: pool.statistics().hung == {"a": 1}, "the calls")
    assert pool.run("a", lambda: 1) == 1


def test_after_sixteen_that_hang_no_more_of_any_class_are_begun(released: threading.Event) -> None:
    pool = TransformPool(2, 30.0)
    for number in range(MOST_HUNG):
        hang(pool, f"class {number // 2}", released)
    with pytest.raises(TooSlow, match=f"fresh: {MOST_HUNG} hang"):
        pool.run("fresh", lambda: 1)


def test_a_class_leaves_a_thread_to_others(released: threading.Event) -> None:
    pool = TransformPool(3, 60.0)
    busy = [threading.Thread(target=pool.run, args=("a", released.wait)) for _ in range(4)]
    for thread in busy:
        thread.start()
    wait_until(lambda: pool.statistics().busy == 2, "the calls")
    assert pool.run("b", lambda: 1) == 1
    released.set()
    for thread in busy:
        thread.join()


def test_who_finds_no_thread_in_time_may_come_again(released: threading.Event) -> None:
    pool = TransformPool(1, 0.05)
    busy = threading.Thread(target=pool.run, args=("a", released.wait), kwargs={"timeout_s": 60.0})
    busy.start()
    wait_until(lambda: pool.statistics().busy == 1, "the calls")
    with pytest.raises(Saturated, match="b: 1 of 1 threads"):
        pool.run("b", lambda: 1)
    released.set()
    busy.join()
    assert pool.run("b", lambda: 1, timeout_s=30.0) == 1


def test_a_call_that_ends_as_its_time_does_has_one_outcome() -> None:
    pool = TransformPool(4, 0.01)
    late: list[object] = []
    outcomes = Counter[str]()
    for _ in range(300):
        try:
            pool.run("a", lambda: time.sleep(0.0095), late=late.append)
            outcomes["returned"] += 1
        except GivenUp:
            outcomes["given up"] += 1
        except TooSlow:
            outcomes["refused"] += 1
    wait_until(lambda: pool.statistics() == (0, {}), "the calls")
    assert len(late) == outcomes["given up"]
    assert outcomes.total() == 300
    assert pool.run("a", lambda: 1, timeout_s=30.0) == 1


def test_many_threads_call_at_once() -> None:
    pool, counted, lock = TransformPool(4, 30.0), [0], threading.Lock()

    def work() -> None:
        with lock:
            counted[0] += 1

    def call(name: str) -> None:
        for _ in range(200):
            pool.run(name, work)

    callers = [threading.Thread(target=call, args=(f"class {n % 3}",)) for n in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counted == [2400]
    assert pool.statistics() == (0, {})
