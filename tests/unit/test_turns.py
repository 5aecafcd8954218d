"""Turns: never more at work than there are, and nobody keeps one while waiting."""

from __future__ import annotations

import threading

import pytest

from ingester.query.turns import Turns

PATIENCE_S = 10.0


def _all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_no_more_are_at_work_than_there_are_turns() -> None:
    turns = Turns(2)
    lock = threading.Lock()
    at_work, most = 0, 0

    def work() -> None:
        nonlocal at_work, most
        for _ in range(200):
            with turns.taken():
                with lock:
                    at_work += 1
                    most = max(most, at_work)
                with lock:
                    at_work -= 1

    _all([threading.Thread(target=work) for _ in range(8)])
    assert most <= 2


def test_whoever_waits_lets_others_work() -> None:
    turns = Turns(1)
    other_worked = threading.Event()

    def wait() -> None:
        with turns.taken(), turns.given_back():
            assert other_worked.wait(PATIENCE_S)

    def work() -> None:
        with turns.taken():
            other_worked.set()

    _all([threading.Thread(target=wait), threading.Thread(target=work)])


def test_a_turn_that_fails_is_not_lost() -> None:
    turns = Turns(1)
    for _ in range(3):
        with pytest.raises(RuntimeError), turns.taken(), turns.given_back():
            raise RuntimeError
    _all([threading.Thread(target=lambda: turns.taken().__enter__())])


def test_there_is_always_a_turn() -> None:
    with Turns().taken():
        pass
