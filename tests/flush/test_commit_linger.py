"""When finished persists of a table go into a commit."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ingester.flush.commit_linger import ENOUGH, ENOUGH_BYTES, PATIENCE_S, CommitLinger

SMALL = 1_000


async def went_after(
    gathering: CommitLinger, table: str, buffer: int, nbytes: int = SMALL
) -> float:
    """How long one waits, in seconds of the clock of trio's."""
    began = trio.current_time()
    await gathering.gathered(table, buffer, nbytes)
    return trio.current_time() - began


def all_go(buffers: int, nbytes: int = SMALL, *, then: str = "") -> list[float]:
    """Expect one more than these, let these come; how long each of them waits, longest last."""
    waits: list[float] = []

    async def one(gathering: CommitLinger, buffer: int) -> None:
        waits.append(await went_after(gathering, "t", buffer, nbytes))

    async def main() -> None:
        gathering = CommitLinger()
        for buffer in range(buffers + 1):
            gathering.expect("t", buffer)
        async with trio.open_nursery() as nursery:
            for buffer in range(buffers):
                nursery.start_soon(one, gathering, buffer)
            await trio.sleep(1)
            if then == "comes":
                nursery.start_soon(one, gathering, buffers)
            elif then == "does not come":
                gathering.forget("t", buffers)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return sorted(waits)


def test_one_that_nobody_follows_does_not_wait() -> None:
    assert all_go(0, then="comes") == [0]


def test_all_go_when_the_last_one_comes() -> None:
    assert all_go(3, then="comes") == pytest.approx([0, 1, 1, 1])


def test_all_go_when_the_last_one_will_not_come() -> None:
    assert all_go(3, then="does not come") == pytest.approx([1, 1, 1])


def test_nobody_waits_longer_than_patience() -> None:
    assert all_go(3) == pytest.approx([PATIENCE_S] * 3)


def test_enough_of_them_go_and_those_after_them_wait_anew() -> None:
    assert all_go(ENOUGH + 2) == pytest.approx([0] * ENOUGH + [PATIENCE_S] * 2)


def test_large_ones_go_at_once() -> None:
    assert all_go(2, ENOUGH_BYTES) == pytest.approx([0, 0])
