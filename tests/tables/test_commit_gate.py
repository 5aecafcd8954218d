"""How long a finished flush waits for others of its table before its commit."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ingester.tables.commit_schedule import ENOUGH, ENOUGH_BYTES, LINGER_S, CommitGate
from tests.tables.flushes import finished, frozen, job_of

SMALL = 1_000


def all_go(buffers: int, nbytes: int = SMALL, *, then: str = "") -> list[float]:
    """How long each of these flushes waits while one more is expected, longest last."""
    waits: list[float] = []
    jobs = [job_of(frozen(number, nbytes)) for number in range(buffers + 1)]

    async def one(gate: CommitGate, number: int) -> None:
        began, flush = trio.current_time(), finished(jobs[number])
        gate.schedule.finish(flush)
        await gate.until_due(flush)
        waits.append(trio.current_time() - began)

    async def main() -> None:
        gate = CommitGate()
        for job in jobs:
            gate.schedule.expect(job)
        async with trio.open_nursery() as nursery:
            for number in range(buffers):
                nursery.start_soon(one, gate, number)
            await trio.sleep(1)
            if then == "comes":
                nursery.start_soon(one, gate, buffers)
            elif then == "does not come":
                gate.schedule.withdraw(jobs[buffers])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return sorted(waits)


def test_one_that_nobody_follows_does_not_wait() -> None:
    assert all_go(0, then="comes") == [0]


def test_all_go_when_the_last_one_comes() -> None:
    assert all_go(3, then="comes") == pytest.approx([0, 1, 1, 1])


def test_all_go_when_the_last_one_will_not_come() -> None:
    assert all_go(3, then="does not come") == pytest.approx([1, 1, 1])


def test_nobody_waits_longer_than_patience() -> None:
    assert all_go(3) == pytest.approx([LINGER_S] * 3)


def test_enough_of_them_go_and_those_after_them_wait_anew() -> None:
    assert all_go(ENOUGH + 2) == pytest.approx([0] * ENOUGH + [LINGER_S] * 2)


def test_large_ones_go_at_once() -> None:
    assert all_go(2, ENOUGH_BYTES) == pytest.approx([0, 0])


def test_a_flush_that_a_commit_takes_along_lingers_no_more() -> None:
    async def main() -> None:
        gate, jobs = CommitGate(), [job_of(frozen(number)) for number in range(2)]
        for job in jobs:
            gate.schedule.expect(job)
        flush = finished(jobs[0])
        gate.schedule.finish(flush)

        async def take() -> None:
            await trio.sleep(1)
            batch = gate.schedule.take(keyed=False)
            gate.schedule.end_commit(batch, batch)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await gate.until_due(flush)
            assert trio.current_time() - began == pytest.approx(1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
