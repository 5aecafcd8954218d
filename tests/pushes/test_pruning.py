"""Pushes that ended long ago are deleted; a controller that was paused restores none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from ingester.pushes.cleaning import Pruned, prune
from ingester.pushes.leading import Heartbeat
from ingester.pushes.record import with_event
from ingester.pushes.states import Status
from ingester.pushes.store import Deposed, HeldPush, PushNotFound, PushStore, push_folders
from persist.manifest import list_tables
from persist.store import ObjectStore, StoreUnavailable
from tests.persist.manifest.stores import ClockedStore
from tests.pushes.test_store import a_push
from tests.pushes.world import BEGAN, ONCE, Life, ScriptedPanel, World, in_order, quick_store

MONTH = timedelta(days=30)


@pytest.fixture
def clocked() -> Iterator[ClockedStore]:
    with quick_store() as inner:
        yield ClockedStore(inner)


def ended(store: ObjectStore, push_id: str = "p1") -> Life:
    """Run a push through all regions."""
    life = Life(World(), store, ScriptedPanel())
    life.begin(in_order(), push_id)
    assert life.run().status is Status.SERVING
    return life


def pruned(store: ClockedStore, **later: float) -> Pruned:
    store.advance(**later)
    return prune(store, push_folders(store), MONTH, store.now())


def test_of_a_push_that_has_ended_two_records_stay_for_a_month(clocked: ClockedStore) -> None:
    life = ended(clocked)
    life.pushes.request("p1", "abort", "too late", BEGAN)
    life.resume()
    life.run()
    kept = life.pushes.newest("p1")
    assert pruned(clocked) == Pruned(0, [])
    assert pruned(clocked, hours=2) == Pruned(kept.number - 2, [])
    assert life.pushes.newest("p1") == kept
    assert life.pushes.numbers("p1") == [kept.number - 1, kept.number]
    assert pruned(clocked, days=27) == Pruned(0, [])
    life.pushes.request("p1", "rollback", "after all", BEGAN)  # it can still be rolled back
    life.resume()
    assert life.run().status is Status.ROLLED_BACK
    assert pruned(clocked, days=29).pushes == []
    assert pruned(clocked, days=2).pushes == ["p1"]
    assert list(clocked.list("")) == []
    with pytest.raises(PushNotFound):
        life.pushes.newest("p1")


def test_a_push_that_is_not_over_is_left_alone(clocked: ClockedStore) -> None:
    life = Life(World(), clocked, ScriptedPanel())
    life.begin(in_order())
    life.run(until=lambda: life.record.swaps == 2)
    assert pruned(clocked, days=100) == Pruned(0, [])
    life.run()
    life.pushes.request("p1", "rollback", "not taken in yet", BEGAN)
    assert pruned(clocked, days=100) == Pruned(0, [])


def asleep(store: ObjectStore) -> HeldPush:
    """Pause a controller in the middle of a push while another one ends the push."""
    held = PushStore(store, ONCE).begin(a_push(), "sleeps", BEGAN)
    life = Life(World(("a", "b")), store, ScriptedPanel())
    life.resume()
    life.run()
    return held


@pytest.mark.parametrize("days", [1, 31])
def test_who_slept_finds_out_though_its_next_number_is_free(
    clocked: ClockedStore, days: int
) -> None:
    held = asleep(clocked)
    assert pruned(clocked, days=days) != Pruned(0, [])
    before = [info.path for info in clocked.list("")]
    with pytest.raises(Deposed):
        held.check()
    with pytest.raises(Deposed):
        held.save(with_event(held.record, None, "mine", BEGAN), BEGAN)
    with pytest.raises(Deposed):
        held.check()
    pushes = PushStore(clocked, ONCE)
    if days == 1:
        assert pushes.newest("p1").record.over
    else:
        assert [info.path for info in clocked.list("")] == before
        with pytest.raises(PushNotFound):
            pushes.newest("p1")


def test_a_record_that_a_killed_sleeper_has_left_is_no_push(clocked: ClockedStore) -> None:
    held = asleep(clocked)
    pruned(clocked, days=31)
    clocked.plan("before", "list", times=5)  # the process dies before it can check
    with pytest.raises(StoreUnavailable):
        held.save(with_event(held.record, None, "mine", BEGAN), BEGAN)
    clocked.recover()
    (left,) = push_folders(clocked)
    assert left.numbers == [2]
    with pytest.raises(PushNotFound):
        PushStore(clocked, ONCE).newest("p1")
    assert pruned(clocked, days=1).pushes == ["p1"]
    assert list(clocked.list("")) == []


def test_a_push_that_is_killed_in_its_pruning_is_none_and_goes_the_next_time(
    clocked: ClockedStore,
) -> None:
    ended(clocked)
    clocked.advance(days=31)
    paths = [info.path for info in clocked.list("")]
    for at in range(len(paths)):
        clocked.plan("before", "delete", paths[at])
        with pytest.raises(StoreUnavailable):
            pruned(clocked)
        clocked.recover()
        for path in paths[:at]:
            assert clocked.exists(path) is None
    assert pruned(clocked).pushes == ["p1"]
    assert list(clocked.list("")) == []


def test_an_id_is_begun_once_while_its_push_is_kept(clocked: ClockedStore) -> None:
    life = ended(clocked)
    pruned(clocked, days=1)
    with pytest.raises(Exception, match="p1 was begun before"):
        life.begin(in_order())
    assert life.pushes.newest("p1").record.over


def test_one_listing_tells_who_is_led_and_is_no_list_of_tables(clocked: ClockedStore) -> None:
    for push_id in ("b", "a", "a-1"):
        ended(clocked, push_id)
    clocked.put("_pushes/a/leader", b"{}")
    clocked.put("_pushes/_strange/leader", b"{}")
    PushStore(clocked, ONCE).begin(a_push("new"), "driver", BEGAN)
    clocked.calls.clear()
    found = {folder.push_id: folder for folder in push_folders(clocked)}
    assert clocked.calls["list"] == clocked.calls.total() == 1
    assert list(found) == ["a-1", "a", "b", "new"]
    heartbeat = Heartbeat()
    assert not found["a"].abandoned(clocked.now(), heartbeat.gone_after)
    assert found["b"].abandoned(clocked.now(), heartbeat.gone_after)
    assert not found["new"].abandoned(clocked.now(), heartbeat.gone_after)
    clocked.advance(seconds=31)
    for push_id in ("a", "new"):
        assert found[push_id].abandoned(clocked.now(), heartbeat.gone_after)
    assert list_tables(clocked) == []


def test_what_takes_long_is_deleted_a_part_at_a_time(clocked: ClockedStore) -> None:
    for push_id in ("p1", "p2", "p3"):
        ended(clocked, push_id)
    clocked.advance(days=31)
    told: list[str] = []
    for count in (1, 2, 3):
        done = prune(clocked, push_folders(clocked), MONTH, clocked.now(), told.append, 0.0)
        assert done == Pruned(0, [f"p{count}"], more=count < 3)
    assert told == ["p1", "p2", "p3"]
    assert list(clocked.list("")) == []
