"""Two pushes of one table at once: the one that began later wins, in every region."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from ingester.pushes.hooks import PROCEED, Answer, HookContext, rollback, wait
from ingester.pushes.record import PushPlan, PushRecord
from ingester.pushes.regions import generation
from ingester.pushes.states import RegionOrder, RegionStage, Status
from ingester.pushes.store import HeldPush
from persist.store import ObjectInfo, StoreUnavailable
from tests.drivers.memory_store import MemoryStore
from tests.pushes.realm import Job, Realm, in_stores, some_rows

ROWS = {"old": 10, "x": 20, "y": 30}
Until = Callable[[PushRecord], bool]


def a_realm(names: str = "ab") -> Realm:
    """Return regions that serve the generation of a push ``old``."""
    realm = in_stores({name: MemoryStore() for name in names})
    realm.step(begun(realm, "old"), job(realm, "old"))
    assert realm.states() == [(2, 10)] * len(names)
    return realm


def begun(
    realm: Realm,
    push_id: str,
    order: str = "in_order",
    since: str | None = None,
    deferred: bool = False,
) -> HeldPush:
    realm.ahead += timedelta(seconds=1)
    regions = RegionOrder(tuple(realm.regions), order)  # type: ignore[arg-type]
    plan = PushPlan(replay_since=since)
    return realm.begin(some_rows(0, ROWS[push_id]), push_id, plan, regions, deferred)


def job(realm: Realm, push_id: str) -> Callable[[PushRecord], None]:
    return Job(realm, some_rows(0, ROWS[push_id])).hear


def steps(realm: Realm, held: HeldPush, push_id: str, until: Until | None = None) -> PushRecord:
    return realm.step(held, job(realm, push_id), until)


def at_its_turn(record: PushRecord) -> bool:
    return record.regions[0].stage is RegionStage.PRE_SWAP


def live_in(name: str) -> Until:
    return lambda record: record.region(name).status is Status.SERVING


def waits(realm: Realm, push_id: str, region: str = "a") -> None:
    """Let a push wait before its switch in a region."""

    def script(hook: str, context: HookContext) -> Answer:
        if (context.method, context.push.push_id, context.region) == (
            "pre_version_swap",
            push_id,
            region,
        ):
            return wait("not yet")
        return PROCEED

    realm.panel.script = script


def goes_on(realm: Realm) -> None:
    realm.panel.script = lambda hook, context: PROCEED


def test_a_push_that_waits_does_not_replace_one_that_began_later() -> None:
    realm = a_realm()
    waits(realm, "x")
    x = begun(realm, "x")
    steps(realm, x, "x", at_its_turn)
    assert steps(realm, begun(realm, "y"), "y").status is Status.SERVING
    goes_on(realm)
    record = steps(realm, x, "x")
    assert record.status is Status.FAILED
    assert realm.states() == [(4, 30)] * 2
    assert record.region("a").reason == (
        "generation 4 of push y is live, which began later: push x is outdated and does not"
        " replace it"
    )
    assert record.region("b").status is Status.ABORTED
    later = [c for c in realm.panel.contexts if c.push.push_id == "x" and c.region == "a"]
    assert all(context.view().previous in (None, 2) for context in later)


def test_an_earlier_push_may_still_go_live_before_a_later_one_whose_hooks_see_it() -> None:
    realm = a_realm()
    x, y = begun(realm, "x"), begun(realm, "y")
    waits(realm, "y")
    steps(realm, y, "y", at_its_turn)
    assert steps(realm, x, "x").status is Status.SERVING
    assert realm.states() == [(4, 20)] * 2
    goes_on(realm)
    record = steps(realm, y, "y")
    assert record.status is Status.SERVING
    assert realm.states() == [(3, 30)] * 2, "its generation was created first, and it began later"
    last = [
        context
        for context in realm.panel.contexts
        if (context.push.push_id, context.method) == ("y", "pre_version_swap")
    ]
    assert {context.region: context.view().previous for context in last} == {"a": 4, "b": 4}


def test_of_two_pushes_the_later_one_wins_in_every_region_whichever_was_faster() -> None:
    realm = a_realm("abc")
    x, y = begun(realm, "x"), begun(realm, "y")
    steps(realm, x, "x", live_in("a"))
    steps(realm, y, "y", live_in("b"))
    assert realm.states() == [(4, 30), (4, 30), (2, 10)]
    record = steps(realm, x, "x")
    assert record.status is Status.FAILED
    assert record.region("a").status is Status.SERVING
    assert record.region("b").status is Status.FAILED
    assert steps(realm, y, "y").status is Status.SERVING
    assert realm.states() == [(4, 30)] * 3


def test_a_deferred_push_that_a_later_one_overtook_says_so_when_it_is_released() -> None:
    realm = a_realm()
    x = begun(realm, "x", deferred=True)
    steps(realm, x, "x", lambda record: record.status is Status.COMPLETED)
    assert steps(realm, begun(realm, "y"), "y").status is Status.SERVING
    realm.pushes.request("x", "release", "checked", realm.now)
    record = steps(realm, x, "x")
    assert record.status is Status.FAILED
    assert "generation 4 of push y is live, which began later" in record.region("a").reason
    assert realm.states() == [(4, 30)] * 2


def test_after_the_later_push_is_rolled_back_the_earlier_one_may_go_live() -> None:
    realm = a_realm()
    waits(realm, "x")
    x = begun(realm, "x")
    steps(realm, x, "x", at_its_turn)
    y = begun(realm, "y")
    steps(realm, y, "y")
    realm.pushes.request("y", "rollback", "bad", realm.now)
    assert steps(realm, y, "y").status is Status.ROLLED_BACK
    goes_on(realm)
    assert steps(realm, x, "x").status is Status.SERVING
    assert realm.states() == [(3, 20)] * 2


def test_a_switch_that_loses_a_race_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another push switches between the look and the switch itself."""
    realm = a_realm("a")
    x, y = begun(realm, "x"), begun(realm, "y")
    waits(realm, "y")
    steps(realm, y, "y", at_its_turn)
    goes_on(realm)
    checked = generation.check_latest
    turns: list[int] = []

    def check_then_lose(version: generation.PushedGeneration) -> int:
        current = checked(version)
        if version.push_id == "x" and not turns and x.record.region("a").swap_number:
            turns.append(1)
            assert steps(realm, y, "y").status is Status.SERVING
        return current

    monkeypatch.setattr(generation, "check_latest", check_then_lose)
    record = steps(realm, x, "x")
    assert turns == [1]
    assert record.status is Status.FAILED
    assert "generation 3 of push y is live, which began later" in record.region("a").reason
    assert realm.states() == [(3, 30)]


def test_a_push_that_replays_rows_continues_the_generation_it_began_with() -> None:
    realm = a_realm("a")
    y = begun(realm, "y", since="start")
    waits(realm, "y")
    steps(realm, y, "y", at_its_turn)
    goes_on(realm)
    x = begun(realm, "x")
    assert steps(realm, x, "x").status is Status.SERVING
    record = steps(realm, y, "y")
    assert record.status is Status.FAILED
    assert realm.states() == [(4, 20)]


def test_an_earlier_push_is_not_rolled_back_in_some_regions_under_a_later_one() -> None:
    realm = a_realm()
    x = begun(realm, "x")
    assert steps(realm, x, "x").status is Status.SERVING
    y = begun(realm, "y")
    waits(realm, "y", "b")
    steps(realm, y, "y", live_in("a"))
    steps(realm, y, "y", lambda record: record.region("b").stage is RegionStage.PRE_SWAP)
    assert realm.states() == [(4, 30), (3, 20)]
    realm.pushes.request("x", "rollback", "bad", realm.now)
    record = steps(realm, x, "x")
    assert record.status is Status.SERVING
    assert record.history[-1].what == (
        "request 1 refused: nothing was rolled back: in region a, generation 3 was replaced by"
        " generation 4 of push y: roll that one back first"
    )
    assert realm.states() == [(4, 30), (3, 20)]
    # As it says: after the later one the earlier one is rolled back everywhere.
    realm.pushes.request("y", "rollback", "bad", realm.now)
    assert steps(realm, y, "y").status is Status.ROLLED_BACK
    assert realm.states() == [(3, 20), (3, 20)]
    realm.pushes.request("x", "rollback", "bad", realm.now)
    assert steps(realm, x, "x").status is Status.ROLLED_BACK
    assert realm.states() == [(2, 10), (2, 10)]


def test_an_earlier_push_is_rolled_back_under_one_that_is_not_live_yet() -> None:
    realm = a_realm()
    x = begun(realm, "x")
    steps(realm, x, "x")
    y = begun(realm, "y")
    waits(realm, "y")
    steps(realm, y, "y", at_its_turn)
    realm.pushes.request("x", "rollback", "bad", realm.now)
    assert steps(realm, x, "x").status is Status.ROLLED_BACK
    goes_on(realm)
    assert steps(realm, y, "y").status is Status.SERVING
    assert realm.states() == [(4, 30)] * 2
    realm.pushes.request("y", "rollback", "bad", realm.now)
    assert steps(realm, y, "y").status is Status.ROLLED_BACK
    assert realm.states() == [(2, 10)] * 2


def test_a_hook_rolls_back_where_no_later_push_is_live() -> None:
    realm = a_realm()
    x = begun(realm, "x", "at_once")
    realm.panel.say("post_version_swap", *[wait("watching")] * 3, rollback("bad"), region="b")
    steps(realm, x, "x", live_in("b"))
    goes_on(realm)
    y = begun(realm, "y")
    waits(realm, "y", "b")
    steps(realm, y, "y", live_in("a"))
    steps(realm, y, "y", lambda record: record.region("b").stage is RegionStage.PRE_SWAP)
    realm.panel.script = realm.panel._scripted
    record = steps(realm, x, "x")
    assert record.status is Status.FAILED
    assert realm.states() == [(4, 30), (2, 10)]
    assert "roll that one back first" in record.region("a").reason
    goes_on(realm)
    assert steps(realm, y, "y").status is Status.SERVING
    assert realm.states() == [(4, 30)] * 2


class AwayStore(MemoryStore):
    """A store that can be unreachable."""

    away = False

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        if self.away:
            raise StoreUnavailable("it is away")
        return super().list(prefix, start_after)


def test_an_unreachable_region_does_not_stop_a_rollback_of_the_others() -> None:
    far = AwayStore()
    realm = in_stores({"a": MemoryStore(), "b": far})
    steps(realm, begun(realm, "old"), "old")
    x = begun(realm, "x")
    steps(realm, x, "x")
    far.away = True
    realm.pushes.request("x", "rollback", "bad", realm.now)
    record = steps(realm, x, "x", lambda record: record.region("a").status is Status.ROLLED_BACK)
    assert record.region("b").status is Status.SERVING
    far.away = False
    assert steps(realm, x, "x").status is Status.ROLLED_BACK
    assert realm.states() == [(2, 10)] * 2
