"""A push through three real stores, with data that a job has put into some of them."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from ingester.pushes.hooks import rollback
from ingester.pushes.leading import PushStatusPublisher
from ingester.pushes.record import PushPlan, new_push
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.regions.tables import replay_version
from ingester.pushes.states import RegionOrder, Status
from ingester.pushes.tasks import RegionFailed
from ingester.reports.pushes import (
    KeptIn,
    PushStatus,
    decode_push_status,
    status_path,
)
from persist.manifest import list_tables, list_versions
from persist.store import PutInfo
from persist.switching import load_current
from tests.drivers.memory_store import MemoryStore
from tests.drivers.waiting import until
from tests.pushes.realm import TABLE, Job, in_folders, in_stores, some_rows


def test_a_push_makes_the_table_fills_each_region_and_goes_live_in_order(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "abc")
    record = realm.push(some_rows(0, 1000))
    assert record.status is Status.SERVING
    assert realm.states() == [(2, 1000)] * 3
    # The next push has one more column, and one region alone lists its data.
    rows = some_rows(0, 900).append_column("x", [1.5] * 900)
    held = realm.begin(rows, "p2")
    record = realm.lead(held, Job(realm, rows, into="ab", listed="b").hear)
    assert record.status is Status.SERVING
    assert realm.states() == [(3, 900)] * 3
    for region in realm.regions.values():
        compared = region.statistics(record)
        assert compared is not None
        assert compared.current is not None
        assert (compared.new.rows, compared.current.rows) == (900, 1000)
        assert compared.new.nulls == {"n": 0, "s": 0, "x": 0}
        told = decode_push_status(region.home.store.get(status_path("p2")))
        assert (told.status, told.kept_in.region) == ("SERVING", "a")
        assert list_tables(region.home.store) == [TABLE]


@pytest.mark.parametrize(
    ("order", "after", "back"),
    [
        (RegionOrder(tuple("abcd"), "in_order"), "a", "a"),
        (RegionOrder(tuple("abcd"), "in_order"), "b", "ba"),
        (RegionOrder(tuple("abcd"), "in_order"), "d", "dcba"),
        (RegionOrder(tuple("abcd"), "target_first", "c"), "c", "c"),
    ],
    ids=["first", "second", "last", "target"],
)
def test_a_rollback_returns_the_regions_that_have_swapped_the_last_one_first(
    tmp_path: Path, order: RegionOrder, after: str, back: str
) -> None:
    realm = in_folders(tmp_path, "abcd")
    assert realm.push(some_rows(0, 100)).status is Status.SERVING
    realm.panel.say("post_version_swap", rollback("bad"), region=after)
    rows = some_rows(0, 90)
    record = realm.lead(realm.begin(rows, "p2", order=order), Job(realm, rows).hear)
    assert record.status is Status.ROLLED_BACK
    gone = [e.region for e in record.history if e.region and e.what.startswith("ROLLED_BACK")]
    assert gone == list(back)
    assert {each.name: each.status for each in record.regions} == {
        name: Status.ROLLED_BACK if name in back else Status.ABORTED for name in "abcd"
    }
    assert realm.states() == [(2, 100)] * 4, "the version before counts everywhere"


def test_a_push_through_some_regions_says_in_which_store_it_is_kept(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "ab")
    order, now = RegionOrder(("b",), "in_order"), realm.now
    held = realm.pushes.begin(new_push("p1", TABLE, order, {}, now), "c1", now)
    realm.pushes.request("p1", "abort", "no rows", now)
    assert realm.lead(held).status is Status.ABORTED
    told = decode_push_status(realm.regions["b"].home.store.get(status_path("p1")))
    assert (told.kept_in.region, told.kept_in.url) == ("a", realm.first.url)


def test_the_id_of_a_push_that_is_forgotten_makes_nothing_of_that_one_its_own() -> None:
    stores = {name: MemoryStore() for name in "ab"}
    realm = in_stores(stores)
    realm.step(realm.begin(some_rows(0, 10)), Job(realm, some_rows(0, 10)).hear)
    realm.step(realm.begin(some_rows(0, 20), "p2"), Job(realm, some_rows(0, 20)).hear)
    for info in list(stores["a"].list("_pushes/p1/")):
        stores["a"].delete(info.path)
    realm.ahead += timedelta(days=31)
    record = realm.step(realm.begin(some_rows(0, 30)), Job(realm, some_rows(0, 30)).hear)
    assert record.status is Status.FAILED
    assert "generation 2 belongs to an earlier push p1: use another id" in record.regions[0].reason
    assert realm.states() == [(3, 20)] * 2
    for name, store in stores.items():
        assert not realm.regions[name].roll_back(record)
        assert [each.kept for each in list_versions(store, *TABLE)] == [True] * 3


@pytest.mark.parametrize(
    ("since", "means"),
    [
        (None, None),
        ("start", 3),
        ("3", 3),
        ("2", "replay_since 2: generation 2 is current only since version 3 of its manifest"),
        ("0", "current only since version 3"),
        ("4", "replay_since: version 4 is not available; 1 to 3 are"),
        ("2020-01-01T00:00:00+00:00", "current only since version 3"),
        ("2120-01-01T00:00:00+00:00", 3),
        ("2120-01-01T00:00:00", "expected .* a time with zone"),
        ("yesterday", "replay_since 'yesterday': expected"),
    ],
)
def test_rows_are_replayed_from_the_start_a_time_or_a_version_on(
    since: str | None, means: int | str | None
) -> None:
    store = MemoryStore()
    realm = in_stores({"a": store})
    record = realm.step(realm.begin(some_rows(0, 10)), Job(realm, some_rows(0, 10)).hear)
    state = load_current(store, *TABLE)
    assert state.version == 3, "made, listed, and imported"
    push = msgspec.structs.replace(record, plan=PushPlan(replay_since=since))
    if isinstance(means, str):
        with pytest.raises(RegionFailed, match=means):
            replay_version(store, push, state, state.version)
    else:
        assert replay_version(store, push, state, state.version) == means


class HeldStore(MemoryStore):
    """A store whose puts block until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def put(self, path: str, data: object) -> PutInfo:
        self.free.wait()
        return super().put(path, data)


def test_a_region_that_is_not_told_holds_up_neither_the_push_nor_other_regions() -> None:
    held, store = HeldStore(), MemoryStore()
    homes = [RegionStore("held", held), RegionStore("a", store)]
    record = in_stores({"a": MemoryStore()}).begin(some_rows(0, 1)).record
    publisher = PushStatusPublisher(homes, "me", KeptIn(region="a", url=store.url), every_s=0.05)

    def told() -> PushStatus | None:
        return decode_push_status(store.get(path)) if store.exists(path) else None

    path = status_path("p1")
    publisher.hear(record)
    until(lambda: told() is not None, "the other region is told")
    first = told()
    assert first is not None
    until(lambda: told() != first, "it is told again, though nothing has changed")
    last = msgspec.structs.replace(record, swaps=7, since=record.since + timedelta(seconds=1))
    publisher.hear(last)
    publisher.close()
    status = told()
    assert status is not None
    assert (status.since, status.leader.controller) == (last.since, "me")
    assert held.exists(path) is None
    held.free.set()
