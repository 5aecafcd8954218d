"""Turns: never more than the pool has, none held while waiting, a fair share for each answer."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from ingester.errors import TooSlow
from ingester.query.fair_scheduler import CpuAccount, FairScheduler
from tests.drivers.waiting import until

PATIENCE_S = 10.0


def _waits(scheduler: FairScheduler, count: int) -> bool:
    return scheduler.waiting == count


def _all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_no_more_are_at_work_than_there_are_turns() -> None:
    scheduler, account = FairScheduler(2), CpuAccount("a")
    lock = threading.Lock()
    at_work, most = 0, 0

    def work() -> None:
        nonlocal at_work, most
        for _ in range(200):
            with scheduler.turn(account):
                with lock:
                    at_work += 1
                    most = max(most, at_work)
                with lock:
                    at_work -= 1

    _all([threading.Thread(target=work) for _ in range(8)])
    assert most <= 2


def test_whoever_waits_lets_others_work() -> None:
    scheduler = FairScheduler(1)
    other_worked = threading.Event()

    def wait() -> None:
        with scheduler.turn(CpuAccount("a")), scheduler.given_back():
            assert other_worked.wait(PATIENCE_S)

    def work() -> None:
        with scheduler.turn(CpuAccount("a")):
            other_worked.set()

    _all([threading.Thread(target=wait), threading.Thread(target=work)])


def test_turns_are_had_in_the_order_of_asking_also_by_one_who_gives_his_back() -> None:
    scheduler = FairScheduler(1)
    order: list[int] = []

    def work(number: int) -> None:
        with scheduler.turn(CpuAccount("a")):
            order.append(number)

    waiting = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    with scheduler.turn(CpuAccount("a")):
        for already, thread in enumerate(waiting):
            thread.start()
            until(partial(_waits, scheduler, already + 1), f"{already + 1} to wait")
        with scheduler.given_back():
            pass
        order.append(-1)
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert order == [0, 1, 2, 3, 4, -1]


def test_a_namespace_that_has_no_turn_does_not_wait_for_the_end_of_anothers() -> None:
    scheduler = FairScheduler(1)
    with scheduler.turn(CpuAccount("a")):
        inner = threading.Event()

        def other() -> None:
            with scheduler.turn(CpuAccount("b")):
                inner.set()

        _all([threading.Thread(target=other)])
        assert inner.is_set()


def test_what_is_computed_counts_in_a_turn_and_outside_and_waiting_does_not() -> None:
    scheduler, account = FairScheduler(1), CpuAccount("a", 0.05)
    with scheduler.turn(account):
        assert not threading.Event().wait(0.06)
        with scheduler.given_back():
            assert not threading.Event().wait(0.06)
        assert scheduler.account() is account
        with (
            pytest.raises(TooSlow, match=r"0\.05 s, as long as query\.max_cpu"),
            scheduler.given_back(),
        ):
            _compute(0.06)
        assert scheduler.account() is account, "the turn is had again, and given by who has it"
    assert scheduler.account() is None
    assert 0.06 <= account.used_s < 0.12


def _compute(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_a_turn_that_fails_is_not_lost() -> None:
    scheduler = FairScheduler(1)
    for _ in range(3):
        with pytest.raises(RuntimeError), scheduler.turn(CpuAccount("a")), scheduler.given_back():
            raise RuntimeError
    _all([threading.Thread(target=lambda: scheduler.turn(CpuAccount("a")).__enter__())])


def test_there_is_always_a_turn() -> None:
    with FairScheduler().turn(CpuAccount("a")):
        pass
