"""The simulation runs the real code: the same commits in simulated time and in real time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.simulation.clock import Clock
from tests.simulation.costs import count_requests
from tests.simulation.daemons import Committer, Contention, a_table, at_once, spread
from tests.simulation.report import contention_table, where_it_ends
from tests.simulation.store import Latencies, Prices, SimulatedStore
from tests.simulation.store_log import Writing, count_log_requests, log_table

COMMITS = 8


def test_time_passes_for_one_process_after_the_other() -> None:
    clock, told = Clock(), list[tuple[float, str]]()

    def process(name: str, steps: tuple[float, ...]) -> Callable[[], None]:
        def body() -> None:
            for step in steps:
                clock.sleep(step)
                told.append((clock.now, name))

        return body

    clock.start(process("a", (1.0, 3.0)))
    clock.start(process("b", (2.0, 7.0)), 1.0)
    assert clock.run(9.0) == 9.0
    assert told == [(1.0, "a"), (3.0, "b"), (4.0, "a")]  # the last time of b is after the end


def test_an_exception_of_a_process_ends_the_simulation() -> None:
    clock = Clock()
    clock.start(lambda: clock.sleep(100.0))
    clock.start(lambda: [][1], 5.0)
    with pytest.raises(IndexError):
        clock.run(1000.0)


def test_simulated_commits_take_as_long_as_real_ones_and_ask_for_as_much() -> None:
    def outcome(found: Contention) -> tuple[float, float]:
        return found.seconds, found.requests_each

    seconds, requests = outcome(at_once(COMMITS, seed=3))
    # The winner varies, and a busy machine adds to real time, but not to each of five runs.
    real = [outcome(in_real_time(COMMITS))]
    while real[-1][0] >= 3 * seconds and len(real) < 5:
        real.append(outcome(in_real_time(COMMITS)))
    real_seconds, real_requests = real[-1]
    assert 0.4 * seconds < real_seconds < 3 * seconds
    assert 0.5 * requests < real_requests < 2 * requests


def in_real_time(daemons: int) -> Contention:
    """The same in concurrent threads in real time, on a store that sleeps."""
    began, found, rng = time.monotonic(), Contention(daemons), Random(5)
    store = SimulatedStore(
        Latencies(0.0, 0.0, 0.0), time.sleep, lambda: time.monotonic() - began, rng
    )
    a_table(store)
    everyone = [Committer(number, store, time.sleep, rng) for number in range(daemons)]
    for daemon in everyone:
        daemon.open()
    for daemon in everyone:
        daemon.look()
    store.latencies = Latencies()
    store.requests.clear()
    first = time.monotonic()

    def persist(daemon: Committer) -> None:
        daemon.persist()
        found.commits_s.append(time.monotonic() - first)

    threads = [threading.Thread(target=persist, args=(daemon,)) for daemon in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds = max(found.commits_s)
    found.requests = store.requests
    return found


def test_more_daemons_make_more_requests_and_each_commit_once() -> None:
    few, many = spread(2, every_s=60.0), spread(12, every_s=60.0)
    assert (len(few.commits_s), len(many.commits_s)) == (2, 12)
    assert few.requests_each < many.requests_each
    # Daemons that commit at different times read before they try, and almost never lose.
    assert many.attempts < 1.5
    together = at_once(12)
    assert together.attempts > many.attempts
    text = contention_table("t", "Some", [few, many]).text()
    assert len(text.splitlines()) == 5
    assert "12 daemons commit within" in where_it_ends([few, many], every_s=60.0)


def test_a_refresh_costs_two_reads_and_a_lone_commit_two_writes() -> None:
    costs = {cost.what: cost.requests for cost in count_requests()}
    assert dict(costs["look, nothing new"]) == {"get": 2}
    alone = costs["commit, alone"]
    assert (alone["put"], alone["create"], alone.total()) == (1, 1, 3)


def test_a_log_object_is_made_at_most_once_per_interval_and_never_while_nobody_writes() -> None:
    busy = count_log_requests(Writing("all the time", 0.03, 30.0), 0.1)
    calm = count_log_requests(Writing("once a second", 1.0, 60.0), 0.1)
    idle = count_log_requests(Writing("never", math.inf, 60.0), 0.1)
    assert 290 <= busy.requests["create"] <= 301
    assert 59 <= calm.requests["create"] <= 61
    assert not idle.requests
    # Deleted after their rows are in files, one by one, and nothing is listed or read for it.
    assert calm.requests["delete"] > 40
    assert busy.requests.total() == busy.requests["create"] + busy.requests["delete"]
    assert busy.month(Prices(writes=0.01)) == 2 * busy.month(Prices(writes=0.005))
    assert len(log_table([busy, calm, idle], Prices()).text().splitlines()) == 7
