"""Callbacks posted from threads to the event loop: each runs once, in the order of its thread."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio

from ingester.errors import Stopping
from ingester.server.portal import Portal

THREADS, EACH = 8, 2_000


def test_everything_left_runs_once_and_in_the_order_of_its_thread() -> None:
    ran: list[tuple[int, int]] = []

    async def run() -> None:
        portal = Portal()
        left: list[int] = []

        def leave(thread: int) -> None:
            for number in range(EACH):
                portal.post(ran.append, (thread, number))
            portal.post(left.append, thread)

        threads = [threading.Thread(target=partial(leave, one)) for one in range(THREADS)]
        for thread in threads:
            thread.start()
        while len(left) < THREADS:
            await trio.lowlevel.checkpoint()
        for thread in threads:
            thread.join()

    trio.run(run)
    assert len(ran) == THREADS * EACH
    for one in range(THREADS):
        assert [number for thread, number in ran if thread == one] == list(range(EACH))


def test_what_is_left_by_a_callback_waits_until_other_tasks_had_their_turn() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def run() -> None:
        portal = Portal()
        done = trio.Event()
        seen: list[int] = []

        def again(left: int) -> None:
            seen.append(turns)
            if left:
                portal.post(again, left - 1)
            else:
                done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            portal.post(again, 20)
            await done.wait()
            nursery.cancel_scope.cancel()
        assert len(set(seen)) > 10

    trio.run(run)


def test_after_the_loop_every_call_says_that_the_daemon_stops() -> None:
    portals: list[Portal] = []

    async def run() -> None:
        portals.append(Portal())

    trio.run(run)
    for _ in range(2):
        with pytest.raises(Stopping):
            portals[0].post(print)


def test_whoever_enters_finds_what_comes_before() -> None:
    """A call first lets the log catch up, so a client sees the rows just acknowledged."""
    done: list[str] = []

    async def ask() -> list[str]:
        return list(done)

    async def run() -> None:
        portal = Portal(before=lambda: done.append("caught up"))
        for times in (1, 2):
            found = await trio.to_thread.run_sync(portal.call, ask)
            assert found == ["caught up"] * times

    trio.run(run)
