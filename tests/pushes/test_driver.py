"""A driver with its threads: a slow region delays no other, and a deposed driver stops."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from ingester.pushes.driver import DriverPace, PushDriver, utc_now
from ingester.pushes.hooks import Answer, HookContext
from ingester.pushes.record import PushRecord, new_push
from ingester.pushes.states import Status
from ingester.pushes.store import Deposed, PushStore
from ingester.pushes.tasks import RegionFailed, Rules
from persist.store import ObjectStore
from tests.pushes.world import ONCE, ScriptedPanel, SimRegion, World, in_order, order_of

SOON = DriverPace(poll=timedelta(milliseconds=5), retry=timedelta(milliseconds=5))


class SlowRegion(SimRegion):
    """A region that creates its version only when a test allows it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.asked_to_write = threading.Event()
        self.may = threading.Event()

    def written(self, push: PushRecord) -> bool:
        self.asked_to_write.set()
        assert self.may.wait(30)
        return super().written(push)


class BrokenRegion(SimRegion):
    """A region with a bug."""

    broken = True

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        if self.broken:
            self.broken = False
            raise ZeroDivisionError("oh")
        return super().lagging_followers(push)


def a_driver(
    world: World, store: ObjectStore, kind: str = "in_order", controller: str = "one"
) -> PushDriver:
    pushes = PushStore(store, ONCE)
    order = in_order() if kind == "in_order" else order_of("at_once")
    now = utc_now()
    if not pushes.numbers("p1"):
        held = pushes.begin(new_push("p1", ("shop", "visits"), order, {}, now), controller, now)
    else:
        held = pushes.take_over("p1", controller, now)
    return PushDriver(held, world.regions, ScriptedPanel(), Rules(), SOON)


def test_a_push_is_led_to_its_end(world: World, store: ObjectStore) -> None:
    driver = a_driver(world, store)
    heard: list[Status] = []
    driver.hear = lambda record: heard.append(record.status)
    assert driver.run(threading.Event()).status is Status.SERVING
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]
    assert heard[0] is Status.STARTED
    assert heard[-1] is Status.SERVING


def test_a_region_that_is_slow_to_answer_holds_up_nobody(world: World, store: ObjectStore) -> None:
    slow = SlowRegion(world, "b")
    world.regions["b"] = slow
    driver = a_driver(world, store, "at_once")
    others = threading.Event()

    def hear(record: PushRecord) -> None:
        if [r.status for r in record.regions].count(Status.SERVING) == 3:
            others.set()
            slow.may.set()

    driver.hear = hear
    assert driver.run(threading.Event()).status is Status.SERVING
    assert others.is_set()
    assert world.log[-1] == "swap b"


def test_an_error_that_nobody_thought_of_is_told_and_asked_again(
    world: World, store: ObjectStore
) -> None:
    world.regions["b"] = BrokenRegion(world, "b")
    record = a_driver(world, store).run(threading.Event())
    assert record.status is Status.SERVING
    assert "unreachable: ZeroDivisionError: oh" in [event.what for event in record.history]


def test_who_is_deposed_stops_and_the_other_one_ends_the_push(
    world: World, store: ObjectStore
) -> None:
    slow = SlowRegion(world, "b")
    world.regions["b"] = slow
    first = a_driver(world, store)
    ended: list[BaseException] = []

    def lead() -> None:
        try:
            first.run(threading.Event())
        except Deposed as exc:
            ended.append(exc)

    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    assert slow.asked_to_write.wait(30)
    second = a_driver(world, store, controller="two")
    slow.may.set()
    assert second.run(threading.Event()).status is Status.SERVING
    thread.join(30)
    assert len(ended) == 1
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]


def test_a_driver_that_is_told_to_stop_leaves_a_push_that_goes_on(
    world: World, store: ObjectStore
) -> None:
    stop = threading.Event()
    first = a_driver(world, store)
    first.hear = lambda record: stop.set() if record.swaps == 2 else None
    assert not first.run(stop).over
    assert a_driver(world, store).run(threading.Event()).status is Status.SERVING


def test_a_push_through_a_region_that_nobody_knows_is_refused(
    world: World, store: ObjectStore
) -> None:
    del world.regions["c"]
    with pytest.raises(ValueError, match="push p1: no region c is configured"):
        a_driver(world, store)


class Unfit(SimRegion):
    """A region whose refusal has a reason that is not valid Unicode."""

    def written(self, push: PushRecord) -> bool:
        raise RegionFailed("file \udc80 is gone")


def test_a_reason_that_is_no_unicode_is_kept_readable(world: World, store: ObjectStore) -> None:
    world.regions["a"] = Unfit(world, "a")
    record = a_driver(world, store).run(soon_over())
    assert record.over
    assert record.region("a").reason == r"written: file \udc80 is gone"


class UnfitPanel(ScriptedPanel):
    """Hooks that raise, which no panel may do."""

    def call(self, hook: str, context: HookContext, queued_s: float = 0.0) -> Answer:
        raise ZeroDivisionError("oh")


def test_a_fault_where_none_may_be_ends_the_leader_and_not_its_thread_alone(
    world: World, store: ObjectStore
) -> None:
    now = utc_now()
    push = new_push("p1", ("shop", "visits"), in_order(), {}, now)
    held = PushStore(store, ONCE).begin(push, "one", now)
    driver = PushDriver(held, world.regions, UnfitPanel(), Rules(), SOON)
    with pytest.raises(ZeroDivisionError):
        driver.run(soon_over())


def test_a_leader_whose_clock_is_behind_waits_for_nothing(world: World, store: ObjectStore) -> None:
    """Clocks an hour ahead began and ended the push; the leader does not wait an hour."""
    ahead = utc_now() + timedelta(hours=1)
    pushes = PushStore(store, ONCE)
    pushes.begin(new_push("p1", ("shop", "visits"), in_order(), {}, ahead), "one", ahead)
    assert a_driver(world, store).run(soon_over()).status is Status.SERVING
    pushes.request("p1", "rollback", "wrong rows", ahead)
    there = pushes.take_over("p1", "two", ahead)
    there.save(msgspec.structs.replace(there.record, since=ahead), ahead)
    assert a_driver(world, store).run(soon_over()).status is Status.ROLLED_BACK


def soon_over() -> threading.Event:
    """Return an event that is set after some time, so that a hanging push ends its test."""
    stop = threading.Event()
    timer = threading.Timer(20, stop.set)
    timer.daemon = True
    timer.start()
    return stop
