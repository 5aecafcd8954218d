"""The shipper: when objects are begun, in which order they count, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps

import pytest
import trio
import trio.testing

from ingester.errors import StoreUnreachable
from ingester.store_log.cleaner import KeptObject
from ingester.store_log.fencing import fence_epoch
from ingester.store_log.shipper import IN_FLIGHT, LOOK_S, ShipLimits
from persist.manifest import WriterIdentity, claim_epoch
from tests.store_log.driving import AT_ONCE, WRITER, Ship, shipping
from tests.store_log.held_store import EPOCH, ID, HeldStore
from wal import Entry, LogError, OutcomeUnknown, RecordKind, Route, RouteState
from wal.objects import DiskOnly, LogObject, object_path

SUCCESSOR = WriterIdentity(ID, "incarnation-4", EPOCH + 1)


def in_trio(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in trio, in bounded time."""

    @wraps(test)
    def run() -> None:
        async def bounded() -> None:
            with trio.fail_after(30):
                await test()

        trio.run(bounded)

    return run


def at_set_times(test: Callable[[trio.testing.MockClock], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in trio with a clock that stands still; then pytest shows no parameter."""

    def run() -> None:
        clock = trio.testing.MockClock()
        trio.run(test, clock, clock=clock)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def shipped_route(name: str = "ns/t") -> Route:
    route = Route(name)
    route.state = RouteState.SHIPPED
    return route


def seqs(found: LogObject) -> list[int]:
    kinds = [record for record in found.records if record.header.kind == RecordKind.OPERATION]
    return [record.header.first_seq for record in kinds]


@in_trio
async def test_nothing_is_created_while_nobody_writes_at_the_store() -> None:
    store = HeldStore()
    async with shipping(store) as ship:
        assert not ship.shipper.takes(Entry(RecordKind.OPERATION, [b"local"]))
        ship.shipper.announce()
        await trio.testing.wait_all_tasks_blocked()
        assert (store.begun, ship.shipper.in_use) == ([], False)
        assert ship.shipper.statistics().state == "unused"
    assert store.objects() == []


@in_trio
async def test_the_first_object_has_the_controls_and_no_operation() -> None:
    store = HeldStore()
    controls = [(int(RecordKind.ORIGINS), (b"origins",))]
    lost = (DiskOnly("ns", "t", 5, 40),)
    async with shipping(store, controls=lambda: controls, disk_only=lambda: lost) as ship:
        entry = await ship.write_one(segment=4)
        assert ship.shipper.opened.is_set()
        assert ship.shipper.in_use
        first, second = store.objects()
        assert [record.header.kind for record in first.records] == [RecordKind.ORIGINS]
        assert bytes(first.records[0].payload) == b"origins"
        assert [record.header.kind for record in second.records] == [RecordKind.OPERATION]
        assert seqs(second) == [entry.seq]
        assert first.note.disk_only == second.note.disk_only == lost
        assert first.header.identity.incarnation == WRITER.incarnation
        sizes = [len(store.get(object_path(ID, EPOCH, number))) for number in (1, 2)]
        await ship.until(lambda: len(ship.acknowledged) == 2)
        assert [(kept.number, kept.nbytes) for kept in ship.acknowledged] == [
            (1, sizes[0]),
            (2, sizes[1]),
        ]
        assert [kept.segment for kept in ship.acknowledged] == [9, 4]


@in_trio
async def test_the_first_object_does_not_count_after_a_later_claim() -> None:
    store = HeldStore()
    async with shipping(store) as ship:
        assert claim_epoch(store, ID, EPOCH + 1, {}) == EPOCH + 1
        ship.write(one := ship.entry(), two := ship.entry())
        await ship.until(lambda: bool(ship.fences))
        assert [type(ship.answers[entry]) for entry in (one, two)] == [OutcomeUnknown] * 2
        assert [fence.by_epoch for fence in ship.fences] == [EPOCH + 1]
        assert not ship.shipper.opened.is_set()


@in_trio
async def test_a_daemon_without_a_disk_opens_its_epoch_before_anything_is_written() -> None:
    store = HeldStore()
    async with shipping(store, ShipLimits(interval_s=0.0, everything=True)) as ship:
        await ship.shipper.opened.wait()
        assert [seqs(each) for each in store.objects()] == [[]]
        route = Route("ns/t")
        local = ship.entry(route)
        local.at_store = False
        ship.write(local)
        await ship.until(lambda: local in ship.answers)
        assert (route.state, ship.flushing) == (RouteState.SHIPPED, [])


@at_set_times
async def test_one_object_is_begun_per_interval(clock: trio.testing.MockClock) -> None:
    store = HeldStore()
    async with shipping(store, ShipLimits(interval_s=0.1)) as ship:
        first = await ship.write_one()  # at once: nothing was written lately
        ship.write(ship.entry())
        ship.write(last := ship.entry())
        await trio.testing.wait_all_tasks_blocked(0.01)
        clock.jump(0.09)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert sorted(store.begun) == [1, 2]
        clock.jump(0.02)
        await ship.until(lambda: last in ship.answers)
        assert [seqs(each) for each in store.objects()] == [[], [first.seq], [2, 3]]
        clock.jump(5)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert sorted(store.begun) == [1, 2, 3], "an idle shipper creates nothing"
        await ship.write_one()
        assert sorted(store.begun) == [1, 2, 3, 4]


@at_set_times
async def test_an_object_is_begun_at_once_when_it_is_full(clock: trio.testing.MockClock) -> None:
    store = HeldStore()
    limits = ShipLimits(interval_s=60.0, max_bytes=4000)
    async with shipping(store, limits) as ship:
        await ship.write_one()
        waits = [ship.entry(nbytes=1000) for _ in range(3)]
        ship.write(*waits)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert sorted(store.begun) == [1, 2]
        ship.write(fills := ship.entry(nbytes=1000))
        await ship.until(lambda: waits[-1] in ship.answers)
        assert seqs(store.object(3)) == [entry.seq for entry in waits]
        assert fills not in ship.answers
        ship.write(large := ship.entry(nbytes=9000))
        await ship.until(lambda: large in ship.answers)
        assert (seqs(store.object(4)), seqs(store.object(5))) == ([fills.seq], [large.seq])
        assert clock.current_time() == 0


@in_trio
async def test_objects_count_in_order_in_whichever_order_they_are_created() -> None:
    store = HeldStore()
    async with shipping(store) as ship:
        await ship.write_one()
        store.hold(3, 4, 5)
        entries = []
        for number in (3, 4, 5):
            ship.write(entry := ship.entry(segment=number))
            entries.append(entry)
            await store.wait_for(number)
        assert ship.shipper.statistics().in_flight == 3
        assert ship.shipper.first_segment == 3
        for number in (5, 4):
            store.let_go(number)
            while not store.exists(object_path(ID, EPOCH, number)):
                await trio.sleep(0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not set(entries) & set(ship.answers)
        store.let_go(3)
        await ship.until(lambda: len(ship.acknowledged) == 5)
        assert list(ship.answers.items())[1:] == [(entry, None) for entry in entries]
        # Each says what was acknowledged when it was begun: nothing but the first two.
        assert [store.object(number).note.acknowledged for number in (3, 4, 5)] == [2, 2, 2]
        assert [kept.acknowledged for kept in ship.acknowledged] == [0, 1, 2, 2, 2]
        await ship.write_one()
        assert store.object(6).note.acknowledged == 5
        await ship.until(lambda: len(ship.acknowledged) == 6)
        assert ship.shipper.first_segment is None


@in_trio
async def test_a_limited_number_of_objects_is_under_way() -> None:
    store = HeldStore()
    async with shipping(store) as ship:
        await ship.write_one()
        store.hold(*range(3, 3 + IN_FLIGHT))
        entries = []
        for number in range(3, 3 + IN_FLIGHT):
            ship.write(entry := ship.entry())
            entries.append(entry)
            await store.wait_for(number)
        ship.write(one := ship.entry())
        ship.write(other := ship.entry())
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(store.begun) == 2 + IN_FLIGHT
        store.let_go()
        await ship.until(lambda: other in ship.answers)
        assert list(ship.answers)[1:] == [*entries, one, other]
        assert seqs(store.object(3 + IN_FLIGHT)) == [one.seq, other.seq]


@in_trio
async def test_an_object_whose_answer_was_lost_is_read_and_counts_once() -> None:
    store = HeldStore()
    store.lost[1] = store.lost[2] = 1
    async with shipping(store) as ship:
        entry = await ship.write_one()
        assert store.begun.count(2) == 2
        assert ship.answers == {entry: None}
        told = ship.shipper.statistics()
        assert (told.puts, told.failed_puts, told.state) == (2, 2, "ok")
        await ship.until(lambda: len(ship.acknowledged) == 2)
        assert told.last_error == "the answer was lost"
        assert told.put_bytes == sum(kept.nbytes for kept in ship.acknowledged)


@in_trio
async def test_a_store_that_answers_503_is_asked_again_and_others_wait_in_order() -> None:
    store = HeldStore()
    async with shipping(store) as ship:
        await ship.write_one()
        store.refused[3] = 3
        store.hold(4)
        ship.write(refused := ship.entry())
        await store.wait_for(3)
        ship.write(behind := ship.entry())
        await store.wait_for(4)
        await ship.until(lambda: refused in ship.answers)
        assert (store.begun.count(3), behind in ship.answers) == (4, False)
        store.let_go(4)
        await ship.until(lambda: behind in ship.answers)
        assert set(ship.answers.values()) == {None}


@in_trio
async def test_the_state_says_that_the_store_fails_until_it_answers() -> None:
    store = HeldStore()
    store.refused[2] = 1 << 30
    async with shipping(store) as ship:
        ship.write(entry := ship.entry())
        while ship.shipper.statistics().state != "failing":
            await trio.sleep(0.001)
        told = ship.shipper.statistics()
        assert told.waiting_bytes == entry.stored_bytes
        assert told.oldest_waiting_s is not None
        assert told.oldest_waiting_s >= 0
        store.refused[2] = 0
        await ship.until(lambda: len(ship.acknowledged) == 2)
        told = ship.shipper.statistics()
        assert (told.state, told.waiting_bytes, told.oldest_waiting_s) == ("ok", 0, None)


@in_trio
async def test_a_fence_answers_all_that_waits_with_an_unknown_outcome() -> None:
    store, held = HeldStore(), Route("ns/held")
    async with shipping(store) as ship:
        await ship.write_one()
        assert fence_epoch(store, EPOCH, SUCCESSOR).numbers == (1, 2)
        store.hold(4)
        ship.write(in_flight := ship.entry())
        ship.write(not_begun := ship.entry(), aside := ship.entry(held))
        await ship.until(lambda: bool(ship.fences))
        left = [in_flight, not_begun, aside]
        assert [type(ship.answers[entry]) for entry in left] == [OutcomeUnknown] * 3
        assert [(fence.by_epoch, fence.by_incarnation) for fence in ship.fences] == [
            (SUCCESSOR.epoch, SUCCESSOR.incarnation)
        ]
        ship.write(late := ship.entry(), late_aside := ship.entry(held))
        assert [type(ship.answers[entry]) for entry in (late, late_aside)] == [OutcomeUnknown] * 2
        told = ship.shipper.statistics()
        assert (told.state, told.waiting_bytes, told.in_flight) == ("fenced", 0, 0)
        # Objects that are created behind the fence do not count.
        store.let_go(4)
        ship.flushed.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [kept.number for kept in ship.acknowledged] == [1, 2]
    assert len(ship.fences) == 1


@at_set_times
async def test_a_process_that_is_faster_than_its_fence_ends_by_the_claim(
    clock: trio.testing.MockClock,
) -> None:
    store = HeldStore()
    async with shipping(store, ShipLimits(interval_s=0.0)) as ship:
        await ship.write_one()
        assert claim_epoch(store, ID, EPOCH + 1, {}) == EPOCH + 1
        await ship.write_one()  # it creates the next object before its successor can
        assert not ship.fences
        clock.jump(LOOK_S)
        await ship.until(lambda: bool(ship.fences))
        assert [fence.by_epoch for fence in ship.fences] == [EPOCH + 1]
        ship.write(late := ship.entry())
        await ship.until(lambda: late in ship.answers)
        assert isinstance(ship.answers[late], OutcomeUnknown)
        assert len(store.objects()) == 3


@in_trio
async def test_whatever_is_at_the_name_of_the_next_object_fences() -> None:
    for found in (b"", b"of another program", b"INGWAL"):
        store = HeldStore()
        store.put(object_path(ID, EPOCH, 2), found)
        async with shipping(store) as ship:
            ship.write(entry := ship.entry())
            await ship.until(lambda: bool(ship.fences))
            assert isinstance(ship.answers[entry], OutcomeUnknown)
            assert ship.fences[0].by_incarnation == "unknown"


@in_trio
async def test_a_fence_waits_for_what_is_being_applied() -> None:
    """The entries before the fence are applied once; those behind it are answered once."""
    store, landing, go_on = HeldStore(), threading.Event(), threading.Event()
    answered: list[tuple[int, bool]] = []

    def shipped(entries: Sequence[Entry], error: LogError | None) -> None:
        if not answered:
            landing.set()
            assert go_on.wait(20)
        answered.extend((entry.seq, error is None) for entry in entries)

    async with shipping(store, shipped=shipped) as ship:
        store.hold(2)
        ship.write(ship.entry())
        await store.wait_for(2)
        store.let_go(2)
        await trio.to_thread.run_sync(lambda: landing.wait(20))
        fence_epoch(store, EPOCH, SUCCESSOR)
        ship.write(ship.entry())
        await store.wait_for(3)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (answered, ship.fences) == ([], [])
        go_on.set()
        await ship.until(lambda: bool(ship.fences))
        assert answered == [(1, True), (2, False)]


@in_trio
async def test_a_table_waits_until_its_earlier_rows_are_in_files_and_others_do_not() -> None:
    store, table, other = HeldStore(), Route("ns/t"), shipped_route("ns/other")
    async with shipping(store) as ship:
        ship.write(one := ship.entry(table), both := ship.entry(table, other))
        ship.write(behind := ship.entry(other))
        await ship.until(lambda: ship.flushing == ["ns/t"])
        assert table.state.value == "held"
        await ship.write_one()
        assert not {one, both, behind} & set(ship.answers)
        # What asks for less follows on the same way.
        local = ship.entry(table)
        local.at_store = False
        ship.write(local)
        ship.flushed.set()
        await ship.until(lambda: local in ship.answers)
        assert table.state.value == "shipped"
        assert list(ship.answers)[1:] == [one, both, behind, local]
        assert ship.flushing == ["ns/t"], "once in the life of a process"
        assert [seqs(each) for each in store.objects()] == [[], [4], [1, 2, 3, 5]]


@in_trio
async def test_a_table_is_not_flushed_before_its_earlier_entries_are_queued() -> None:
    """A submit wakes the loop, which must not take the route before `announce`."""
    store, table = HeldStore(), Route("ns/t")
    async with shipping(store) as ship:
        entry = ship.entry(table)
        assert ship.shipper.takes(entry)
        ship.shipper.submit([entry])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert ship.flushing == []
        ship.shipper.announce()
        await ship.until(lambda: ship.flushing == ["ns/t"])
        ship.flushed.set()
        await ship.until(lambda: entry in ship.answers)


@in_trio
async def test_sequences_rise_in_an_object_that_has_released_entries() -> None:
    store, table = HeldStore(), Route("ns/t")
    async with shipping(store, ShipLimits(interval_s=0.05)) as ship:
        await ship.write_one()
        ship.write(held := ship.entry(table))
        await ship.until(lambda: bool(ship.flushing))
        ship.write(later := ship.entry())
        ship.flushed.set()
        await ship.until(lambda: {held, later} <= set(ship.answers))
        assert seqs(store.object(3)) == [held.seq, later.seq]


@in_trio
async def test_a_writer_waits_for_room_and_is_woken_by_an_acknowledgement() -> None:
    store = HeldStore()
    limits = ShipLimits(interval_s=0.0, waiting_bytes=1000)
    async with shipping(store, limits) as ship:
        store.hold(2)
        assert not ship.shipper.is_full(5000), "one operation always has room"
        ship.write(entry := ship.entry(nbytes=900))
        await store.wait_for(2)
        assert ship.shipper.is_full(200)
        with pytest.raises(StoreUnreachable, match='ack = "disk" are not affected') as error:
            await trio.to_thread.run_sync(partial(ship.shipper.wait_for_room, 200, 0.01))
        assert error.value.retry_after_s
        assert f"{entry.stored_bytes} bytes wait" in str(error.value)
        waits, has_room = threading.Event(), trio.Event()

        def wait() -> None:
            waits.set()
            ship.shipper.wait_for_room(200, 20.0)

        async def wait_in_thread() -> None:
            await trio.to_thread.run_sync(wait)
            has_room.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_in_thread)
            await trio.to_thread.run_sync(lambda: waits.wait(20))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not has_room.is_set()
            store.let_go()
            await has_room.wait()
        await ship.until(lambda: entry in ship.answers)


@in_trio
async def test_a_store_that_acknowledges_nothing_has_no_room_however_little_waits() -> None:
    store = HeldStore()
    limits = ShipLimits(interval_s=0.0, patience_s=0.05)
    async with shipping(store, limits) as ship:
        await ship.write_one()
        await trio.sleep(2 * limits.patience_s)
        assert not ship.shipper.is_full(1), "nothing waits"
        store.hold(3)
        ship.write(entry := ship.entry())
        await store.wait_for(3)
        await trio.sleep(2 * limits.patience_s)
        assert ship.shipper.is_full(1)
        with pytest.raises(StoreUnreachable):
            await trio.to_thread.run_sync(partial(ship.shipper.wait_for_room, 1, 0.01))
        store.let_go()
        await ship.until(lambda: entry in ship.answers)
        await ship.until(lambda: not ship.shipper.is_full(1))


@in_trio
async def test_the_end_lets_those_go_who_wait_for_room() -> None:
    store = HeldStore()
    async with shipping(store, ShipLimits(interval_s=0.0, waiting_bytes=10)) as ship:
        store.hold(2)
        ship.write(ship.entry(nbytes=100))
        await store.wait_for(2)
        waiter = threading.Thread(target=ship.shipper.wait_for_room, args=(100, 20.0))
        waiter.start()
    await trio.to_thread.run_sync(partial(waiter.join, 10))
    assert not waiter.is_alive()
    store.let_go()


@in_trio
async def test_a_cancelled_shipper_answers_all_that_waits_once() -> None:
    store, held = HeldStore(), Route("ns/held")
    async with shipping(store) as ship:
        stored = await ship.write_one()
        store.hold(3)
        ship.write(in_flight := ship.entry())
        await store.wait_for(3)
        ship.write(aside := ship.entry(held))
        await ship.until(lambda: bool(ship.flushing))
        before = dict(ship.answers)
    assert before == {stored: None}
    assert {type(ship.answers[entry]) for entry in (in_flight, aside)} == {OutcomeUnknown}
    store.let_go()  # the request may still succeed: a later process decides
    ship.write(late := ship.entry())
    assert isinstance(ship.answers[late], OutcomeUnknown)
    assert ship.fences == []


@in_trio
async def test_an_object_that_lands_while_the_shipper_is_cancelled_counts() -> None:
    store, landing, go_on = HeldStore(), threading.Event(), threading.Event()
    answers: list[tuple[int, bool]] = []

    def shipped(entries: Sequence[Entry], error: LogError | None) -> None:
        landing.set()
        assert go_on.wait(20)
        answers.extend((entry.seq, error is None) for entry in entries)

    async with trio.open_nursery() as nursery:
        ship = Ship(store, AT_ONCE, shipped=shipped)
        await nursery.start(ship.shipper.run)
        store.hold(3)
        ship.write(ship.entry())
        await trio.to_thread.run_sync(lambda: landing.wait(20))
        ship.write(ship.entry())
        await store.wait_for(3)
        nursery.cancel_scope.cancel()
        go_on.set()
    assert answers == [(1, True), (2, False)]
    assert [kept.number for kept in ship.acknowledged] == [1, 2]
    store.let_go()


@in_trio
async def test_entries_of_many_threads_are_all_shipped() -> None:
    """No wake-up is lost between the threads that submit and the loop that sleeps."""
    store = HeldStore()
    async with shipping(store, ShipLimits(interval_s=0.0, max_bytes=2000)) as ship:
        entries = [ship.entry(nbytes=100) for _ in range(2000)]

        def write() -> None:
            for at in range(0, len(entries), 2):
                ship.write(*entries[at : at + 2])

        await trio.to_thread.run_sync(write)
        await ship.until(lambda: len(ship.answers) == len(entries))
        assert list(ship.answers.items()) == [(entry, None) for entry in entries]
        await ship.until(lambda: len(ship.acknowledged) == len(store.objects()))
        assert [seq for each in store.objects() for seq in seqs(each)] == list(range(1, 2001))
        assert ship.acknowledged[0] == KeptObject(1, 0, 9, ship.acknowledged[0].nbytes)
