"""Fair CPU shares: equal for namespaces, and equal for the answers of each namespace."""

from __future__ import annotations

import threading
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ingester.query.fair_scheduler import CpuAccount, Pool, Shares

TURN_MS = 10


class _Asker(NamedTuple):
    """An answer that always wants a turn, each ``turn_ms`` long."""

    account: CpuAccount
    turn_ms: int


class _Machine:
    """A pool with its own clock. An asker that has run rejoins at the end of the queue.

    The only asker in the queue gets the next turn, however much it has used already.
    """

    def __init__(self, turns: int) -> None:
        self.shares = Shares()
        self.pool = Pool(turns, self.shares)
        self.now_ms = 0
        self._running: list[tuple[int, _Asker]] = []
        self._waiting: list[tuple[threading.Lock, _Asker]] = []

    def join(self, asker: _Asker) -> None:
        lock = self.pool.join(asker.account)
        if lock is None:
            self._begin(asker)
        else:
            self._waiting.append((lock, asker))

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms:
            self.end_one(again=True)

    def end_one(self, *, again: bool) -> None:
        ended = min(self._running, key=lambda each: each[0])
        self._running.remove(ended)
        self.now_ms, asker = ended
        self.shares.charge(asker.account, asker.turn_ms / 1000)
        self.pool.leave(asker.account.namespace)
        for waiter in [each for each in self._waiting if not each[0].locked()]:
            self._waiting.remove(waiter)
            self._begin(waiter[1])
        if again:
            self.join(asker)

    def drain(self) -> None:
        while self._running:
            self.end_one(again=False)

    def _begin(self, asker: _Asker) -> None:
        self._running.append((self.now_ms + asker.turn_ms, asker))


def _askers(costs: dict[str, list[int]]) -> dict[str, list[_Asker]]:
    return {name: [_Asker(CpuAccount(name), cost) for cost in each] for name, each in costs.items()}


def _used_ms(askers: list[_Asker]) -> list[float]:
    return [each.account.used_s * 1000 for each in askers]


costs = st.builds(lambda cost, number: [cost] * number, st.integers(2, TURN_MS), st.integers(4, 9))
"""Turns of one length in each namespace. Short turns come less often than is fair, because an asker
that has just left is not in the queue when the next one is chosen."""


@given(st.dictionaries(st.sampled_from("abc"), costs, min_size=2), st.integers(0, 50))
def test_namespaces_have_equal_shares_and_so_have_the_answers_in_each(
    wanted: dict[str, list[int]], before: int
) -> None:
    machine, everyone = _Machine(1), _askers(wanted)
    early = next(iter(everyone.values()))
    for asker in early:
        machine.join(asker)
    machine.run(before)
    begun = sum(_used_ms(early))
    for asker in [each for askers in everyone.values() for each in askers if askers is not early]:
        machine.join(asker)
    machine.run(before + 300)
    shares = [sum(_used_ms(each)) - begun * (each is early) for each in everyone.values()]
    assert max(shares) - min(shares) <= 6 * TURN_MS, "a turn is not cut off"
    for each in everyone.values():
        assert max(_used_ms(each)) - min(_used_ms(each)) <= 5 * TURN_MS
    machine.drain()
    assert machine.pool.waiting == len(machine.shares) == 0


def test_a_small_query_does_not_wait_for_a_hundred_large_ones_of_another_namespace() -> None:
    machine = _Machine(1)
    for asker in _askers({"large": [TURN_MS] * 100})["large"]:
        machine.join(asker)
    machine.run(5000)
    small = _Asker(CpuAccount("small"), 1)
    began = machine.now_ms
    machine.join(small)
    while not small.account.used_s:
        machine.end_one(again=True)
    assert machine.now_ms - began <= 1


def test_who_comes_back_has_saved_nothing_up_and_an_old_answer_is_not_behind_new_ones() -> None:
    machine = _Machine(1)
    old, new = (_Asker(CpuAccount("a"), TURN_MS) for _ in range(2))
    other = _Asker(CpuAccount("b"), TURN_MS)
    machine.join(old)
    machine.run(1000)
    machine.drain()
    for asker in (new, old, other):
        machine.join(asker)
    machine.run(2000)
    used = _used_ms([new, old, other])
    assert abs(used[0] - (used[1] - 1000)) <= 3 * TURN_MS
    assert abs(used[2] - (used[0] + used[1] - 1000)) <= 4 * TURN_MS
