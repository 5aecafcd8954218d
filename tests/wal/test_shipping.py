"""Entries that wait for the store: applied only when it has them, while others continue."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.drafts import END, join
from tests.wal.driving import (
    Running,
    Stored,
    in_a_thread,
    in_trio,
    operation,
    payloads,
    recovered_records,
    running,
    to_thread_until,
)
from tests.wal.held_disk import HeldDisk
from tests.wal.test_drafts import Outcomes
from wal import (
    Draft,
    Entry,
    LogClosed,
    LogFailed,
    LogFull,
    OrderedSession,
    OutcomeUnknown,
    RecordKind,
    Route,
    RouteState,
)
from wal.shipping import Waiting


class ByHand:
    """A `Shipping` whose entries wait until the test ships them."""

    def __init__(self) -> None:
        self.waiting: list[Entry] = []
        self.threads: list[threading.Thread] = []
        self.announced: Callable[[], object] = lambda: None
        self.came = threading.Semaphore(0)

    def takes(self, entry: Entry) -> bool:
        return entry.at_store

    def submit(self, entries: Sequence[Entry]) -> None:
        self.waiting += entries
        self.threads.append(threading.current_thread())
        for _ in entries:
            self.came.release()

    def announce(self) -> None:
        self.announced()

    async def wait_for(self, count: int) -> None:
        """Return when that many more entries wait."""
        for _ in range(count):
            assert await trio.to_thread.run_sync(lambda: self.came.acquire(timeout=20))

    def take(self, count: int) -> list[Entry]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


def for_store(payload: bytes) -> Entry:
    entry = operation(payload)
    entry.at_store = True
    return entry


def of(state: Running) -> list[bytes]:
    """The payloads of the applied entries."""
    return [b"".join(entry.body.pieces)[: entry.payload_bytes] for entry in state.applied]


@in_trio
async def test_an_entry_that_ships_is_applied_when_it_is_shipped_and_others_meanwhile(
    tmp_path: Path,
) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        first, second = for_store(b"first"), for_store(b"second")
        state.answers.append(state.log, first, second)
        await shipping.wait_for(2)
        assert [first.shipped, first.seq, second.seq] == [True, 1, 2]
        (local,) = await state.answers.write(state.log, b"local")
        assert (local.shipped, of(state)) == (False, [b"local"])
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(first) == [None]
        assert (of(state), second in state.answers.by_entry) == ([b"local", b"first"], False)
        await in_a_thread(partial(state.log.shipped, shipping.take(1)))
        assert await state.answers.wait(second) == [None]
        assert of(state) == [b"local", b"first", b"second"]
    assert payloads((await recovered_records(tmp_path))[1]) == [b"first", b"second", b"local"]


@in_trio
async def test_entries_are_applied_in_the_order_in_which_they_are_shipped(tmp_path: Path) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        entries = [for_store(b"%d" % number) for number in range(200)]
        local = [operation(b"local %d" % number) for number in range(200)]
        for one, other in zip(entries, local, strict=True):
            state.answers.append(state.log, one, other)
        await state.answers.wait(*local)
        await shipping.wait_for(200)

        def ship() -> None:
            while taken := shipping.take(7):
                state.log.shipped(taken)

        await in_a_thread(ship)
        assert await state.answers.wait(*entries) == [None] * 200
        assert [one for one in state.applied if one.shipped] == entries
        assert [one for one in state.applied if not one.shipped] == local


@in_trio
async def test_an_entry_counts_as_stored_only_once_it_is_shipped(tmp_path: Path) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        stored, entry = Stored(state), for_store(b"x")
        entry.on_stored, entry.on_done = stored.note, state.answers.note
        await in_a_thread(partial(state.log.append, entry))
        state.log.catch_up()
        assert (stored.seen, state.log.settled, state.applied) == ([], True, [])
        # Blocks the loop: an entry is not applied when its waiter learns that it is stored.
        state.log.shipped(shipping.take(1))
        assert (stored.seen, state.answers.by_entry) == ([(1, 0, False)], {})
        assert not state.log.settled
        await in_a_thread(lambda: state.log.wait_settled(20) or pytest.fail("not settled"))
        assert state.applied == [entry]


@in_trio
async def test_a_thread_that_appends_hands_over_what_ships_itself(tmp_path: Path) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        entry = for_store(b"x")
        entry.on_done = state.answers.note
        await in_a_thread(partial(state.log.append, entry))
        (thread,) = shipping.threads
        assert thread.name != "wal-append"
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(entry) == [None]


@in_trio
async def test_local_entries_of_a_group_are_queued_before_a_new_route_is_announced(
    tmp_path: Path,
) -> None:
    """A flush that follows the announcement then finds them, and no log object lacks them."""
    shipping, disk = ByHand(), HeldDisk()
    async with running(tmp_path, shipping=shipping, disk=disk) as state:
        token, seen, looked = trio.lowlevel.current_trio_token(), [], threading.Event()

        def look() -> None:
            state.log.catch_up()
            seen.extend(of(state))
            looked.set()

        def announced() -> None:
            token.run_sync_soon(look)
            assert looked.wait(20)

        shipping.announced = announced
        before = operation(b"before")
        disk.hold()
        state.answers.append(state.log, before)
        await disk.wait_until_held()
        same_group, ships = operation(b"same group"), for_store(b"ships")
        state.answers.append(state.log, same_group, ships)
        disk.let_go.set()
        await state.answers.wait(same_group)
        await shipping.wait_for(1)
        await to_thread_until(looked.is_set, "the announcement")
        assert seen == [b"before", b"same group"]
        state.log.shipped(shipping.take(1))
        await state.answers.wait(ships)


@in_trio
async def test_an_entry_that_is_not_shipped_is_answered_with_the_error_and_not_applied(
    tmp_path: Path,
) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        entries = [for_store(b"a"), for_store(b"b")]
        state.answers.append(state.log, *entries)
        await shipping.wait_for(2)
        error = OutcomeUnknown("fenced")
        state.log.shipped(shipping.take(2), error)
        assert await state.answers.wait(*entries) == [error, error]
        await state.answers.write(state.log, b"local")
        assert of(state) == [b"local"]
        assert state.log.statistics().failed_groups == 0


@in_trio
async def test_entries_behind_a_refused_one_of_their_session_are_refused_while_others_wait(
    tmp_path: Path,
) -> None:
    shipping, disk = ByHand(), HeldDisk()
    async with running(tmp_path, shipping=shipping, disk=disk) as state:
        session = OrderedSession()

        def of_session(payload: bytes) -> Entry:
            entry = Entry(RecordKind.OPERATION, [payload], sessions=(session,))
            entry.at_store = True
            return entry

        waits, full, behind = of_session(b"waits"), of_session(b"full"), of_session(b"behind")
        state.answers.append(state.log, waits)
        await shipping.wait_for(1)
        disk.fail("pwritev", errno.ENOSPC)
        state.answers.append(state.log, full)
        (error,) = await state.answers.wait(full)
        assert isinstance(error, LogFull)
        disk.heal()
        state.answers.append(state.log, behind)
        (error,) = await state.answers.wait(behind)
        assert isinstance(error, LogFull)
        # The one before them is in the log, and its outcome is the store's.
        assert shipping.waiting == [waits]
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(waits) == [None]
        assert of(state) == [b"waits"]


@in_trio
async def test_drafts_that_ship_are_answered_when_they_are_shipped(tmp_path: Path) -> None:
    shipping = ByHand()
    outcomes = Outcomes()

    def make(drafts: list[Draft]) -> list[Entry]:
        entries = join(drafts)
        for entry in entries:
            entry.at_store = True
        return entries

    async with running(tmp_path, shipping=shipping, make=make) as state:
        state.log.append_nowait(outcomes.draft(b"x"))
        await shipping.wait_for(1)
        state.log.catch_up()
        assert not outcomes.seen
        state.log.shipped(shipping.take(1))
        assert await outcomes.wait(1) == {b"x": None}
        assert of(state) == [b"x" + END]


@in_trio
async def test_a_log_rotates_and_prunes_while_entries_wait(tmp_path: Path) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        entry = for_store(b"waits")
        state.answers.append(state.log, entry)
        await shipping.wait_for(1)
        await state.log.rotate()
        await state.answers.write(state.log, b"next")
        assert (entry.segment, state.log.open_segment) == (1, 2)
        assert await state.log.prune(entry.segment) == []
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(entry) == [None]
        assert await state.log.prune(2) == [1]
        assert of(state) == [b"next", b"waits"]


@in_trio
async def test_entries_are_applied_while_a_rotation_is_under_way(tmp_path: Path) -> None:
    """No segment is open between the seal of one and the publishing of the next."""
    shipping, disk = ByHand(), HeldDisk()
    async with running(tmp_path, shipping=shipping, disk=disk) as state:
        entry = for_store(b"waits")
        state.answers.append(state.log, entry)
        await shipping.wait_for(1)
        async with trio.open_nursery() as nursery:
            disk.hold(call="fsync_directory")  # of the name of the next segment
            nursery.start_soon(state.log.rotate)
            await disk.wait_until_held()
            await in_a_thread(partial(state.log.shipped, shipping.take(1)))
            assert await state.answers.wait(entry) == [None]
            assert of(state) == [b"waits"]
            disk.let_go.set()
        await state.answers.write(state.log, b"next")


@in_trio
async def test_entries_are_applied_while_no_segment_can_be_opened(tmp_path: Path) -> None:
    shipping, disk = ByHand(), HeldDisk()
    async with running(tmp_path, shipping=shipping, disk=disk) as state:
        entry = for_store(b"waits")
        state.answers.append(state.log, entry)
        await shipping.wait_for(1)
        disk.fail("rename", errno.ENOSPC)
        with pytest.raises(LogFull):
            await state.log.rotate()
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(entry) == [None]
        disk.heal()
        await state.answers.write(state.log, b"next")
        assert of(state) == [b"waits", b"next"]


@in_trio
async def test_a_log_closes_while_entries_wait_and_they_are_answered_afterwards(
    tmp_path: Path,
) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping) as state:
        entries = [for_store(b"stored"), for_store(b"unknown")]
        state.answers.append(state.log, *entries)
        await shipping.wait_for(2)
        await state.log.close()
        assert not state.answers.by_entry
        with pytest.raises(LogClosed):
            state.log.append_nowait(for_store(b"late"))
        state.log.shipped(shipping.take(1))
        state.log.shipped(shipping.take(1), OutcomeUnknown("stopped"))
        first, second = await state.answers.wait(*entries)
        assert (first, type(second)) == (None, OutcomeUnknown)
        assert of(state) == [b"stored"]
    recovered, records = await recovered_records(tmp_path)
    assert payloads(records) == [b"stored", b"unknown"]
    assert recovered.torn_segments == 0


@in_trio
async def test_entries_of_a_log_that_failed_are_answered_once(tmp_path: Path) -> None:
    shipping, disk = ByHand(), HeldDisk()
    waits, fails = for_store(b"waits"), operation(b"fails")
    left: list[Running] = []

    async def fail() -> None:
        async with running(tmp_path, shipping=shipping, disk=disk, clean=False) as state:
            left.append(state)
            state.answers.append(state.log, waits)
            await shipping.wait_for(1)
            disk.fail("fdatasync")
            state.answers.append(state.log, fails)
            await trio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(LogFailed), flatten_subgroups=True):
        await fail()
    (state,) = left
    assert isinstance(state.answers.by_entry[fails], LogFailed)
    assert waits not in state.answers.by_entry
    state.log.shipped(shipping.take(1), OutcomeUnknown("stopped"))
    assert isinstance((await state.answers.wait(waits))[0], OutcomeUnknown)
    assert state.applied == []
    await state.log.close()


@in_trio
async def test_entries_of_a_cancelled_log_are_answered_once(tmp_path: Path) -> None:
    shipping = ByHand()
    async with running(tmp_path, shipping=shipping, clean=False) as state:
        entry = for_store(b"waits")
        state.answers.append(state.log, entry)
        await shipping.wait_for(1)
    assert not state.answers.by_entry
    state.log.shipped(shipping.take(1), OutcomeUnknown("stopped"))
    assert isinstance((await state.answers.wait(entry))[0], OutcomeUnknown)
    await state.log.close()
    assert payloads((await recovered_records(tmp_path))[1]) == [b"waits"]


def entry_on(*routes: Route, seq: int = 0) -> Entry:
    entry = for_store(b"%d" % seq)
    entry.routes, entry.seq = routes, seq
    return entry


def test_what_follows_a_held_entry_on_one_of_its_routes_is_held_too() -> None:
    waiting, held, shipped, other = Waiting(), Route("held"), Route("shipped"), Route("other")
    held.state, shipped.state, other.state = RouteState.HELD, RouteState.SHIPPED, RouteState.SHIPPED
    one, both, after, free, note = (
        entry_on(shipped, seq=1),
        entry_on(held, shipped, seq=2),
        entry_on(shipped, seq=3),
        entry_on(other, seq=4),
        entry_on(seq=5),
    )
    waiting.add([one, both, after, free, note], 7.0)
    assert [entry for _, entry in waiting.ready] == [one, free, note]
    assert waiting.ready_bytes == sum(entry.stored_bytes for entry in (one, free, note))
    assert {entry for _, entry in waiting.all()} == {one, both, after, free, note}
    waiting.release()
    assert [entry for _, entry in waiting.ready] == [one, free, note], "the route is still held"
    held.state = RouteState.SHIPPED
    waiting.release()
    assert [entry for _, entry in waiting.ready] == [one, free, note, both, after]
    waiting.add([late := entry_on(held, seq=6)], 8.0)
    assert waiting.ready[-1] == (8.0, late)
    assert waiting.take_all() == [one, free, note, both, after, late]
    assert (waiting.ready_bytes, list(waiting.all())) == (0, [])


def test_an_object_takes_at_least_one_entry_and_at_most_its_bytes() -> None:
    waiting, entries = Waiting(), [entry_on(seq=number) for number in range(5)]
    waiting.add(entries, 0.0)
    size = entries[0].stored_bytes
    assert [entry for _, entry in waiting.take(1)] == entries[:1]
    assert [entry for _, entry in waiting.take(2 * size)] == entries[1:3]
    assert waiting.ready_bytes == 2 * size
    assert [entry for _, entry in waiting.take(100 * size)] == entries[3:]
    assert (waiting.take(1), waiting.ready_bytes) == ([], 0)
