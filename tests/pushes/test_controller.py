"""Controllers find each push of a store that has no leader, and lead none twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from ingester.cli.controller import PushMetrics
from ingester.pushes.config import HookSettings
from ingester.pushes.controller import Controller, ControllerSettings, log_hook_failure
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.hooks import PROCEED, Answer, HookContext, wait
from ingester.pushes.leading import (
    HEARTBEAT,
    Heartbeat,
    Leadership,
    heartbeats,
    lead,
    leader_of,
    led_by,
    see_through,
)
from ingester.pushes.record import HookName, Patience, PushRecord, new_push
from ingester.pushes.states import RegionOrder, Status
from ingester.pushes.store import Deposed, PushStore
from ingester.pushes.tasks import Rules
from persist.store import ObjectStore, StoreError
from tests.drivers.waiting import until
from tests.persist.manifest.stores import ClockedStore, FaultyStore
from tests.pushes.test_driver import SOON, SlowRegion
from tests.pushes.world import OLD, ONCE, PATIENCE, ScriptedPanel, World, in_order

QUICK = Heartbeat(every=timedelta(milliseconds=50), gone_after=timedelta(seconds=1))
OFTEN = ControllerSettings(look_every=timedelta(milliseconds=20), prune_every=timedelta(0))
Places = Callable[..., Leadership]


@pytest.fixture
def place(world: World, store: ObjectStore, panel: ScriptedPanel) -> Places:
    """Return a function that gives a named controller its leadership."""

    def made(name: str = "one", at: ObjectStore = store) -> Leadership:
        return Leadership(
            store=at,
            controller=name,
            regions=lambda: world.regions,
            panel=panel,
            rules=Rules(patience=PATIENCE),
            pace=SOON,
            heartbeat=QUICK,
        )

    return made


def begin(
    store: ObjectStore, push_id: str = "p1", table: str = "visits", order: RegionOrder | None = None
) -> PushStore:
    """Begin a push without a leader, with a record old enough not to count as just begun."""
    pushes = PushStore(store, ONCE)
    record = new_push(push_id, ("shop", table), order or in_order(), {}, utc_now())
    pushes.begin(record, "driver", utc_now())
    pushes.take_over(push_id, "driver", utc_now())
    return pushes


@contextmanager
def running(*controllers: Controller) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=each.run, args=(stop,)) for each in controllers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def ends(pushes: PushStore, push_id: str = "p1") -> PushRecord:
    until(lambda: pushes.newest(push_id).record.over, f"the end of {push_id}")
    return pushes.newest(push_id).record


def test_what_nobody_leads_is_led_to_its_end_and_told_as_it_goes(
    place: Places, store: ObjectStore, world: World
) -> None:
    pushes = begin(store)
    controller = Controller(place(), OFTEN)
    with capture_logs() as logged:
        controller.run_once(threading.Event())
    record = pushes.newest("p1").record
    assert record.status is Status.SERVING
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]
    told = [(line["region"], line["what"]) for line in logged if line["event"] == "push changed"]
    assert told == [(event.region, event.what) for event in record.history[1:]]
    assert [line["event"] for line in logged if line["event"] != "push changed"] == [
        "push led",
        "push ended",
    ]
    assert led_by(store, "p1") is None
    # No work remains, so the controller writes nothing.
    number = pushes.newest("p1").number
    Controller(place(), OFTEN).run_once(threading.Event())
    assert pushes.newest("p1").number == number


def test_who_is_deposed_is_not_heard_of_after_who_leads(store: ObjectStore) -> None:
    with heartbeats(store, "p1", "one", HEARTBEAT):
        with (
            pytest.raises(Deposed),
            heartbeats(store, "p1", "two", HEARTBEAT),
        ):
            raise Deposed("p1")
        assert led_by(store, "p1") is None, "until the one that leads is heard of again"
    with (
        pytest.raises(StoreError),
        heartbeats(store, "p1", "two", HEARTBEAT),
    ):
        raise StoreError("away")
    assert led_by(store, "p1") is not None, "another one is to wait"


def test_two_controllers_share_the_pushes_and_each_swap_is_made_once(
    place: Places, store: ObjectStore, world: World
) -> None:
    ids = [f"p{at}" for at in range(5)]
    # Each push has its own regions: those in memory take one call at a time.
    others = World(ids)
    world.regions.update(others.regions)
    pushes = PushStore(store, ONCE)
    for push_id in ids:
        begin(store, push_id, table=push_id, order=RegionOrder((push_id,)))
    both = [Controller(place("one"), OFTEN), Controller(place("two"), OFTEN)]
    with running(*both):
        assert {ends(pushes, push_id).status for push_id in ids} == {Status.SERVING}
    assert sorted(others.log) == [f"swap {push_id}" for push_id in ids]
    assert both[0].statistics().taken_over + both[1].statistics().taken_over >= 5
    assert [folder for folder in ids if led_by(store, folder)] == []


def test_a_push_is_left_to_its_leader_as_long_as_that_one_is_heard_of(
    place: Places, store: ObjectStore, world: World
) -> None:
    slow = SlowRegion(world, "b")
    world.regions["b"] = slow
    pushes = begin(store)
    first, second = Controller(place("one"), OFTEN), Controller(place("two"), OFTEN)
    with running(first):
        assert slow.asked_to_write.wait(30)
        until(lambda: led_by(store, "p1") is not None, "a heartbeat")
        with running(second):
            looked = threading.Event()
            looked.wait(QUICK.gone_after.total_seconds() * 2)
            assert second.statistics().taken_over == 0
            assert pushes.newest("p1").controller == "one"
            slow.may.set()
            assert ends(pushes).status is Status.SERVING
    assert first.statistics()[3:5] == (1, 0)


def test_a_leader_that_comes_back_from_a_pause_is_deposed_and_leaves_the_push_alone(
    place: Places, store: ObjectStore, world: World
) -> None:
    slow = SlowRegion(world, "b")
    world.regions["b"] = slow
    pushes = begin(store)
    stopped = replace(place("one"), heartbeat=QUICK._replace(every=timedelta(hours=1)))
    ended: list[BaseException] = []

    def led() -> None:
        try:
            lead(stopped, "p1", threading.Event())
        except Deposed as exc:
            ended.append(exc)

    thread = threading.Thread(target=led)
    thread.start()
    assert slow.asked_to_write.wait(30)
    second = Controller(place("two"), OFTEN)
    with running(second):
        until(lambda: pushes.newest("p1").controller == "two", "the take-over")
        slow.may.set()
        thread.join(30)
        assert len(ended) == 1
        assert ends(pushes).status is Status.SERVING
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]


@pytest.mark.parametrize("after_its_end", [False, True])
def test_a_request_while_nobody_leads_is_heard_by_who_comes_next(
    place: Places, store: ObjectStore, world: World, after_its_end: bool
) -> None:
    pushes = begin(store)
    if after_its_end:
        Controller(place(), OFTEN).run_once(threading.Event())
    pushes.request("p1", "rollback", "wrong day", utc_now())
    pushes.request("p1", "abort", "as well", utc_now())
    Controller(place(), OFTEN).run_once(threading.Event())
    record = pushes.newest("p1").record
    assert record.status is (Status.ROLLED_BACK if after_its_end else Status.ABORTED)
    assert record.requests == 2
    assert world.current() == [OLD] * 4
    assert [line for line in world.log if line.startswith("back")] == (
        ["back d", "back c", "back b", "back a"] if after_its_end else []
    )


def test_a_store_that_is_away_for_a_while_holds_nothing_up_for_longer(
    place: Places, store: ObjectStore
) -> None:
    faulty = FaultyStore(store)
    pushes = begin(store)
    controller = Controller(place(at=faulty), OFTEN)
    with capture_logs() as logged:
        for call in ("list", "get", "create", "exists"):
            faulty.plan("before", call, times=3)
            faulty.plan("after", call, times=2)
        with running(controller):
            assert ends(pushes).status is Status.SERVING
    assert controller.statistics().failed_looks >= 1
    away = [line for line in logged if line["event"] == "pushes not seen"]
    assert away
    assert {line["runbook"] for line in away} == {"store-away"}


def test_waits_and_their_deadline_outlive_the_controllers(
    place: Places, store: ObjectStore, panel: ScriptedPanel
) -> None:
    """Each controller asks once and stops; a later one meets the first one's deadline."""

    def waits(hook: str, context: HookContext) -> Answer:
        asked.append(context)
        stops[-1].set()
        return wait("not yet") if context.method == "pre_version_swap" else PROCEED

    asked: list[HookContext] = []
    stops: list[threading.Event] = []
    pushes = begin(store, order=RegionOrder(("a",)))
    panel.script = lambda hook, context: (
        waits(hook, context) if context.method == "pre_version_swap" else PROCEED
    )
    patience = Patience(timedelta(milliseconds=300), timedelta(seconds=2), PATIENCE.on_deadline)
    while not pushes.newest("p1").record.over:
        stops.append(threading.Event())
        controller = Controller(replace(place(), rules=Rules(patience=patience)), OFTEN)
        controller.run_once(stops[-1])
        assert len(stops) < 50
    calls = [context.call for context in asked]
    assert sorted(set(calls)) == list(range(1, max(calls) + 1))
    assert len({context.deadline for context in asked}) == 1
    assert len({context.first_called_at for context in asked if context.call > 1}) == 1
    record = pushes.newest("p1").record
    assert record.status is Status.ABORTED
    assert record.ending is not None
    assert "was waited for since" in record.ending.reason
    # By the clock at the time of the answer, which may be long after the question.
    assert record.ending.at >= asked[-1].deadline
    assert len(stops) > 1


def test_a_push_that_cannot_be_led_here_is_told_once_and_left_as_it_is(
    place: Places, store: ObjectStore
) -> None:
    begin(store, "elsewhere", "t1", RegionOrder(("a", "mars", "venus")))
    begin(store, "damaged", "t2")
    store.create(f"_pushes/damaged/{3:020d}", b"not JSON")
    pushes = begin(store)
    controller = Controller(place(), OFTEN)
    with capture_logs() as logged, running(controller):
        assert ends(pushes).status is Status.SERVING
        until(lambda: controller.statistics().pushes.get("SERVING") == 1, "another look")
    refused = {line["push"]: line["error"] for line in logged if line["event"] == "push not led"}
    assert len([line for line in logged if line["event"] == "push not led"]) == 2
    assert refused["elsewhere"] == (
        "push elsewhere goes through mars, venus, which is not configured here"
    )
    assert f"_pushes/damaged/{3:020d}" in refused["damaged"]
    assert pushes.newest("elsewhere").number == 2
    assert controller.statistics().unreadable == 1


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b'{"a": ' + b"[" * 100_000])
def test_a_leader_file_that_is_none_is_somebodys_until_it_is_old(
    store: ObjectStore, data: bytes
) -> None:
    """One push's invalid file must not hide all other pushes from a controller."""
    store.put("_pushes/p1/leader", data)
    lead = leader_of(store, "p1")
    assert lead is not None and lead.controller == "somebody"


def test_a_fault_in_leading_ends_no_controller_and_is_tried_again(
    place: Places, store: ObjectStore, panel: ScriptedPanel
) -> None:
    faults = [ZeroDivisionError("oh")]

    class Faulty(ScriptedPanel):
        @property
        def names(self) -> list[HookName]:
            if faults:
                raise faults.pop()
            return [HookName("hook")]

    pushes = begin(store)
    with capture_logs() as logged, running(Controller(replace(place(), panel=Faulty()), OFTEN)):
        assert ends(pushes).status is Status.SERVING
    (line,) = [line for line in logged if line["log_level"] == "error"]
    assert (line["event"], line["runbook"]) == ("push left", "internal-error")


def test_old_pushes_are_deleted_and_the_rest_is_told_of_them(
    place: Places, store: ObjectStore
) -> None:
    clocked = ClockedStore(store)
    begin(clocked)
    begin(clocked, "p2", table="orders")
    forgotten: list[str] = []
    keeping = OFTEN._replace(retain=timedelta(days=3), forget=forgotten.append)
    controller = Controller(place(at=clocked), keeping)
    controller.run_once(threading.Event())
    assert forgotten == []
    clocked.advance(days=4)
    controller.look()
    assert sorted(forgotten) == ["p1", "p2"]
    assert list(store.list("")) == []
    assert controller.statistics().pruned == 2


def test_a_hook_that_fails_is_told_in_the_log(place: Places, store: ObjectStore) -> None:
    settings = HookSettings(classes=("tests.pushes.some_hooks:Raises",), on_error="proceed")
    pushes = begin(store, order=RegionOrder(("a",)))
    runner = HookRunner(settings, load_hooks(settings), log_hook_failure)
    with capture_logs() as logged:
        Controller(replace(place(), panel=runner), OFTEN).run_once(threading.Event())
    assert ends(pushes).status is Status.SERVING
    failed = [line for line in logged if line["event"] == "hook failed"]
    assert [line["method"] for line in failed] == ["pre_version_swap", "post_version_swap"]
    assert failed[0]["error"] == "ZeroDivisionError: oh"
    assert {line["counts_as"] for line in failed} == {"proceed"}
    assert {(line["log_level"], line["region"], line["runbook"]) for line in failed} == {
        ("warning", "a", "hook-failed")
    }


def test_what_a_controller_has_seen_is_told_as_metrics(place: Places, store: ObjectStore) -> None:
    begin(store)
    controller = Controller(place(), OFTEN)
    registry = CollectorRegistry()
    registry.register(PushMetrics(controller))
    assert "looked_ago" not in generate_latest(registry).decode()
    controller.run_once(threading.Event())
    controller.look()
    scraped = generate_latest(registry).decode()
    for line in (
        'ingester_pushes{status="SERVING"} 1.0',
        'ingester_pushes{status="FAILED"} 0.0',
        "ingester_pushes_led 0.0",
        "ingester_controller_taken_over_total 1.0",
        "ingester_controller_looked_ago_seconds ",
    ):
        assert line in scraped, line


def test_a_push_is_seen_through_whoever_leads_it(
    place: Places, store: ObjectStore, world: World
) -> None:
    slow = SlowRegion(world, "b")
    world.regions["b"] = slow
    begin(store)
    heard: list[PushRecord] = []
    results: list[PushRecord] = []
    with running(Controller(place("one"), OFTEN)):
        assert slow.asked_to_write.wait(30)
        until(lambda: led_by(store, "p1") is not None, "a heartbeat")
        looks = threading.Thread(
            target=lambda: results.append(
                see_through(place("two"), "p1", threading.Event(), heard.append)
            )
        )
        looks.start()
        until(lambda: bool(heard), "a look")
        slow.may.set()
        looks.join(30)
    (record,) = results
    assert record.status is Status.SERVING
    assert heard[-1] == record
    begin(store, "p2", table="orders")
    assert see_through(place("two"), "p2", threading.Event()).status is Status.SERVING
