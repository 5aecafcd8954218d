"""Records of pushes in a store are written once, by one controller, even if answers are lost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from ingester.pushes.record import PushRecord, decode, encode, new_push, with_event
from ingester.pushes.states import RegionOrder
from ingester.pushes.store import (
    Deposed,
    PushDamaged,
    PushExists,
    PushNotFound,
    PushStore,
    push_folders,
)
from persist.store import ObjectInfo, ObjectStore, StoreUnavailable
from tests.drivers.memory_store import MemoryStore
from tests.persist.manifest.stores import FaultyStore
from tests.pushes.world import BEGAN, ONCE


def a_push(push_id: str = "p1") -> PushRecord:
    return new_push(push_id, ("shop", "visits"), RegionOrder(("a", "b")), {"ticket": "42"}, BEGAN)


def test_what_was_kept_is_read_back(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    held = pushes.begin(a_push(), "one", BEGAN)
    later = with_event(held.record, "a", "something", BEGAN)
    held.save(later, BEGAN)
    assert pushes.newest("p1").record == later
    assert decode(encode(later)) == later


def test_a_push_is_begun_once(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    pushes.begin(a_push(), "one", BEGAN)
    with pytest.raises(PushExists, match="p1 was begun before"):
        pushes.begin(a_push(), "two", BEGAN)


def test_who_was_deposed_keeps_nothing_more(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    first = pushes.begin(a_push(), "one", BEGAN)
    second = pushes.take_over("p1", "two", BEGAN)
    with pytest.raises(Deposed):
        first.check()
    with pytest.raises(Deposed):
        first.save(with_event(first.record, None, "mine", BEGAN), BEGAN)
    second.check()
    second.save(with_event(second.record, None, "mine", BEGAN), BEGAN)
    assert pushes.newest("p1").controller == "two"


def test_a_push_is_taken_over_while_its_holder_goes_on(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    pushes = PushStore(faulty, ONCE)
    first = pushes.begin(a_push(), "one", BEGAN)
    later = with_event(first.record, None, "meanwhile", BEGAN)
    faulty.meanwhile = lambda: first.save(later, BEGAN)
    second = pushes.take_over("p1", "two", BEGAN)
    assert second.record == later
    with pytest.raises(Deposed):
        first.check()


def test_a_record_whose_answer_was_lost_is_known_as_ones_own(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    pushes = PushStore(faulty, ONCE)
    held = pushes.begin(a_push(), "one", BEGAN)
    faulty.plan("after", "create")
    later = with_event(held.record, None, "something", BEGAN)
    held.save(later, BEGAN)
    held.check()
    assert held.record == later


def test_a_store_that_stays_away_is_said(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    pushes = PushStore(faulty, ONCE)
    held = pushes.begin(a_push(), "one", BEGAN)
    faulty.plan("before", "create", times=5)
    with pytest.raises(StoreUnavailable):
        held.save(with_event(held.record, None, "something", BEGAN), BEGAN)


def test_requests_are_kept_in_their_order(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    held = pushes.begin(a_push(), "one", BEGAN)
    assert pushes.request("p1", "abort", "wrong day", BEGAN) == 1
    assert pushes.request("p1", "rollback", "worse", BEGAN) == 2
    assert [(r.kind, r.reason) for r in held.requests()] == [
        ("abort", "wrong day"),
        ("rollback", "worse"),
    ]
    held.save(msgspec.structs.replace(held.record, requests=1), BEGAN)
    assert [r.kind for r in held.requests()] == ["rollback"]
    with pytest.raises(PushNotFound, match="no push 'p2'"):
        pushes.request("p2", "abort", "?", BEGAN)


class PassingBy(MemoryStore):
    """A store whose listing misses an object created during the listing."""

    passed_by = ""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        found = super().list(prefix, start_after)
        return (info for info in found if info.path != self.passed_by)


def test_a_request_that_a_listing_passes_by_is_heard_and_none_twice() -> None:
    store = PassingBy()
    pushes = PushStore(store, ONCE)
    held = pushes.begin(a_push(), "one", BEGAN)
    pushes.request("p1", "abort", "first", BEGAN)
    pushes.request("p1", "rollback", "second", BEGAN)
    heard = []
    for store.passed_by in (f"_pushes/p1/requests/{1:020d}", ""):
        there = held.requests()
        heard += [each.reason for each in there]
        taken = msgspec.structs.replace(held.record, requests=held.record.requests + len(there))
        held.save(taken, BEGAN)
    assert heard == ["first", "second"]


def test_all_pushes_are_listed_each_once(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    for push_id in ("b", "a", "a.1", "a-1", "a0"):
        held = pushes.begin(a_push(push_id), "one", BEGAN)
        held.save(with_event(held.record, None, "something", BEGAN), BEGAN)
        pushes.request(push_id, "abort", "", BEGAN)
    assert sorted(each.push_id for each in push_folders(store)) == ["a", "a-1", "a.1", "a0", "b"]


def test_a_foreign_object_is_refused_by_name(store: ObjectStore) -> None:
    pushes = PushStore(store, ONCE)
    pushes.begin(a_push(), "one", BEGAN)
    store.create(f"_pushes/p1/{2:020d}", b'{"number": 2}')
    with pytest.raises(PushDamaged, match="_pushes/p1/00000000000000000002: "):
        pushes.newest("p1")


@pytest.mark.parametrize("push_id", ["", "_p", "a/b", "a b", "x" * 129])
def test_an_id_that_cannot_name_a_push_is_refused(store: ObjectStore, push_id: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        PushStore(store, ONCE).begin(a_push(push_id), "one", BEGAN)
