"""The byte budget of jobs: never exceeded, except by a single large job, and served in order."""

from __future__ import annotations

import random

import trio
import trio.testing

from persist.jobs import ByteBudget


def test_concurrent_jobs_never_exceed_the_limit_unless_one_runs_alone() -> None:
    async def run(seed: int) -> None:
        rng = random.Random(seed)
        budget, held, done = ByteBudget(100), list[int](), list[int]()

        async def job(number: int, nbytes: int) -> None:
            await budget.spend(nbytes)
            held.append(nbytes)
            assert sum(held) <= 100 or len(held) == 1
            await trio.sleep(rng.random())
            held.remove(nbytes)
            budget.give_back(nbytes)
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(job, number, rng.choice([1, 40, 60, 100, 500]))
        assert sorted(done) == list(range(50))

    for seed in range(5):
        trio.run(run, seed, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_cancelled_waiter_gives_its_turn_back() -> None:
    async def run() -> None:
        budget = ByteBudget(10)
        await budget.spend(10)
        with trio.move_on_after(1) as scope:
            await budget.spend(5)
        assert scope.cancelled_caught, "there was no room"
        budget.give_back(10)
        with trio.fail_after(1):
            await budget.spend(10)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
