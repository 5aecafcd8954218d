"""The heap is trimmed soon after a large release, rarely during further ones, and at the end."""

from __future__ import annotations

from itertools import pairwise

import trio
import trio.testing

from ingester.memory.heap_trim import BETWEEN_S, PAUSE_S, QUIET_S, TRIM_BYTES, HeapTrim


class Trimmed:
    """A daemon's heap trimming in simulated time, with the times at which it trimmed."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.heap_trim = HeapTrim(self._trim)
        self._began = 0.0

    async def _trim(self) -> None:
        self.at.append(round(trio.current_time() - self._began, 3))

    def run(self, released: dict[float, int], until_s: float) -> list[float]:
        """Return the times of trimming when these numbers of bytes are released at these times."""

        async def live() -> None:
            self._began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.heap_trim.run)
                for at, nbytes in sorted(released.items()):
                    await trio.sleep_until(self._began + at)
                    self.heap_trim.freed(nbytes)
                await trio.sleep_until(self._began + until_s)
                nursery.cancel_scope.cancel()

        trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
        return self.at


def test_little_is_not_worth_it() -> None:
    assert Trimmed().run({1.0: TRIM_BYTES - 1}, 100.0) == []


def test_much_goes_back_at_once_whether_it_came_at_once_or_not() -> None:
    assert Trimmed().run({1.0: TRIM_BYTES}, 100.0) == [1.0 + PAUSE_S]
    halves = {1.0: TRIM_BYTES // 2, 50.0: TRIM_BYTES // 2}
    assert Trimmed().run(halves, 100.0) == [50.0 + PAUSE_S]


def test_what_follows_goes_back_when_no_more_of_it_comes() -> None:
    persist = dict.fromkeys([1.0, 1.5, 2.0, 2.5, 3.0], TRIM_BYTES)
    first, second = Trimmed().run(persist, 100.0)
    assert first == 1.0 + PAUSE_S
    assert 3.0 + QUIET_S <= second <= 3.0 + 2 * QUIET_S + 2 * PAUSE_S


def test_under_a_steady_load_it_trims_seldom() -> None:
    load = {1.0 + number: TRIM_BYTES for number in range(100)}
    found = Trimmed().run(load, 100.0)
    gaps = [round(after - before, 3) for before, after in pairwise(found)]
    assert gaps == [BETWEEN_S + PAUSE_S] * 9
