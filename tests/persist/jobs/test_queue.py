"""The flush queue: order within a key, parallel work across keys, bytes counted until the end."""

from __future__ import annotations

from collections import Counter
from random import Random

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.jobs import PersistQueue, worker_for

jobs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 99)), max_size=40)


async def nothing_first(_: object) -> None:
    """A preparation step that does nothing."""


@settings(max_examples=30)
@given(jobs, st.integers(1, 5))
def test_jobs_of_a_key_run_in_order_and_one_at_a_time(
    todo: list[tuple[int, int, int]], workers: int
) -> None:
    begun: list[tuple[int, int]] = []
    finished: list[tuple[int, int]] = []
    running: Counter[tuple[int, str]] = Counter()

    async def work(job: tuple[int, int, int], stage: str) -> tuple[int, int]:
        key, duration, number = job
        running[key, stage] += 1
        assert running[key, stage] == 1
        await trio.sleep(duration)
        running[key, stage] -= 1
        return key, number

    async def begin(job: tuple[int, int, int]) -> int:
        begun.append(await work(job, "begin"))
        return job[2]

    async def finish(job: tuple[int, int, int], number: int) -> None:
        assert number == job[2]
        finished.append(await work(job, "finish"))

    async def main() -> None:
        queue: PersistQueue[tuple[int, int, int], int] = PersistQueue(workers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run, begin, finish)
            for number, (key, duration, nbytes) in enumerate(todo):
                queue.put(f"key-{key}", (key, duration, number), nbytes)
                if number % 7 == 3:
                    await trio.sleep(number)
                unfinished = number + 1 - len(finished)
                assert queue.queued_jobs == unfinished
            while queue.queued_jobs:
                await trio.sleep(1)
            assert queue.queued_bytes == queue.active == 0
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    for stage in (begun, finished):
        for key in {key for key, _, _ in todo}:
            numbers = [number for found, number in stage if found == key]
            assert numbers == [n for n, (wanted, _, _) in enumerate(todo) if wanted == key]


def test_one_job_starts_while_another_finishes_and_no_more() -> None:
    async def main() -> None:
        queue: PersistQueue[int, int] = PersistQueue(1)
        begun: list[int] = []
        finishing: list[int] = []
        turns = trio.Semaphore(0)

        async def begin(job: int) -> int:
            begun.append(job)
            return job

        async def finish(job: int, _: int) -> None:
            finishing.append(job)
            await turns.acquire()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run, begin, finish)
            for job in range(4):
                queue.put("k", job, 1)
            for done in range(3):
                await trio.testing.wait_all_tasks_blocked()
                assert (begun, finishing) == ([*range(done + 2)], [*range(done + 1)])
                assert queue.active == 2
                turns.release()
            await trio.testing.wait_all_tasks_blocked()
            assert queue.active == 1
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_different_keys_run_at_the_same_time() -> None:
    async def main() -> None:
        queue: PersistQueue[str, None] = PersistQueue(4)
        keys = {worker_for(f"k{n}", 4): f"k{n}" for n in range(100)}
        assert len(keys) == 4
        everyone = trio.Event()
        inside = 0

        async def finish(_: str, _begun: None) -> None:
            nonlocal inside
            inside += 1
            if inside == 4:
                everyone.set()
            await everyone.wait()  # returns only when all four have arrived

        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run, nothing_first, finish)
            for key in keys.values():
                queue.put(key, key, 10)
            with trio.fail_after(60):
                await everyone.wait()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_bytes_of_a_job_count_until_it_is_done() -> None:
    async def main() -> None:
        queue: PersistQueue[int, None] = PersistQueue(1)
        go_on = trio.Event()

        async def finish(_: int, _begun: None) -> None:
            await go_on.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run, nothing_first, finish)
            queue.put("k", 1, 100)
            queue.put("k", 2, 50)
            await trio.testing.wait_all_tasks_blocked()
            assert (queue.queued_jobs, queue.queued_bytes, queue.active) == (2, 150, 2)
            go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            assert (queue.queued_jobs, queue.queued_bytes, queue.active) == (0, 0, 0)
            nursery.cancel_scope.cancel()

    trio.run(main)


@given(st.text(), st.integers(1, 64))
def test_a_key_always_goes_to_the_same_worker(key: str, workers: int) -> None:
    key = key.encode(errors="replace").decode()
    worker = worker_for(key, workers)
    assert 0 <= worker < workers
    assert worker_for(key, workers) == worker


@given(st.text("abc", max_size=8), st.integers(1, 64))
def test_with_an_additional_worker_a_key_stays_or_moves_to_it(key: str, workers: int) -> None:
    assert worker_for(key, workers + 1) in (worker_for(key, workers), workers)


def test_keys_are_spread_evenly() -> None:
    draw = Random(7)
    counts = Counter(worker_for(str(draw.random()), 8) for _ in range(8000))
    assert len(counts) == 8
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150
