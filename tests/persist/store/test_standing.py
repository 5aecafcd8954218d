"""Whether the store is reachable, according to the outcomes of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from persist.store import (
    AlreadyExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreWatch,
    WatchedStore,
)
from persist.store.watched import DOUBT_S, OPERATIONS, SLOW_S
from tests.drivers.memory_store import MemoryStore


class Watched:
    """A watch with the test's own clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard = 0
        self.watch = StoreWatch(self._hear, lambda: self.now, lambda: 1e9 + self.now)

    def _hear(self) -> None:
        self.heard += 1

    def answer(self, operation: str = "get") -> None:
        self.watch.note(operation, "ok", 0.01)

    def fail(self, operation: str = "get", error: str = "503") -> None:
        self.watch.note(operation, "away", 0.01, error)

    @property
    def state(self) -> str:
        return self.watch.status().state


def test_a_store_is_unknown_then_ok_and_one_failure_is_no_outage() -> None:
    store = Watched()
    assert store.state == "unknown"
    store.answer()
    assert store.watch.status() == ("ok", 1e9 + 100, 1e9 + 100, None, True, True)
    store.fail()
    assert (store.state, store.heard, store.watch.doubted()) == ("ok", 1, frozenset({"get"}))
    store.answer()
    assert (store.state, store.watch.doubted()) == ("ok", frozenset())
    # Two failures with an answer between them are no outage either.
    store.fail()
    store.answer()
    store.fail()
    assert store.state == "ok"


def test_a_second_failure_or_a_second_without_an_answer_is_an_outage_until_it_answers() -> None:
    twice, alone = Watched(), Watched()
    for store in (twice, alone):
        store.answer()
        store.fail(error="first")
    twice.fail(error="second")
    assert (twice.state, alone.state) == ("away", "ok")
    alone.now += DOUBT_S
    assert alone.state == "away"
    found = twice.watch.status()
    assert (found.last_error, found.reads, found.writes) == ("second", False, True)
    twice.now += 60
    assert twice.watch.status().since == 1e9 + 100
    twice.answer()
    assert (twice.state, twice.watch.status().since) == ("ok", 1e9 + 160)
    # The last error remains readable after the outage.
    assert twice.watch.status().last_error == "second"


def test_a_successful_read_says_nothing_about_writes() -> None:
    store = Watched()
    store.answer("put")
    for _ in range(2):
        store.fail("put", "no room")
        store.answer("list")
    found = store.watch.status()
    assert (found.state, found.reads, found.writes) == ("away", True, False)
    store.answer("create")
    assert store.state == "ok"


def test_a_store_that_fails_only_reads_or_listings_is_unreachable() -> None:
    for kind, others in (("get", ("exists", "list")), ("list", ("get", "exists"))):
        store = Watched()
        store.answer("put")
        for _ in range(2):
            store.fail(kind)
            for each in others:
                store.answer(each)
        found = store.watch.status()
        assert (found.state, found.reads, found.writes) == ("away", False, True), kind
        store.answer(kind)
        assert store.state == "ok"


def test_failed_deletes_do_not_count() -> None:
    store = Watched()
    store.answer("put")
    for _ in range(3):
        store.fail("delete", "403")
    store.now += 60
    assert (store.state, store.heard) == ("ok", 0)
    store.fail("put", "no room")
    store.answer("delete")
    store.fail("put", "no room")
    assert store.state == "away"


def test_a_slow_request_is_doubted_until_it_is_answered() -> None:
    store = Watched()
    store.answer("put")
    with store.watch.under_way("put"), store.watch.under_way("get"):
        store.now += SLOW_S
        assert store.watch.doubted() == frozenset()
        store.now += 1
        # Doubted, but not unreachable: the request may be large.
        assert (store.watch.doubted(), store.state) == (frozenset({"write", "get"}), "ok")
    assert store.watch.doubted() == frozenset()


def test_a_store_without_our_claim_is_unreachable_whatever_it_answers() -> None:
    store = Watched()
    store.answer()
    store.watch.found("no claim")
    store.answer()
    store.answer("put")
    assert store.watch.status()[0::3] == ("away", "no claim")
    assert store.watch.status()[4:] == (False, False)
    store.watch.found(None)
    assert store.state == "ok"


def test_a_request_without_an_answer_counts_once() -> None:
    store = Watched()
    store.answer()
    store.watch.unanswered("exists", 5.0)
    assert store.state == "away"
    assert store.watch.status().last_error == "no answer within 5 s"


CALLS: dict[str, Callable[[Any], object]] = {
    "get": lambda store: store.get("a"),
    "open": lambda store: store.open("a"),
    "exists": lambda store: store.exists("a"),
    "list": lambda store: list(store.list("")),
    "put": lambda store: store.put("a", b""),
    "create": lambda store: store.create("b", b""),
    "delete": lambda store: store.delete("a"),
}


class Broken(MemoryStore):
    """Every call raises one error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def _raise(self, *_: object, **__: object) -> Any:
        raise self._error

    get = open = exists = list = put = create = delete = _raise


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_request_is_counted_by_its_outcome_and_its_error_raised(
    operation: str,
) -> None:
    errors = {
        StoreUnavailable("x"): "away",
        StoreFull("x"): "full",
        StoreDenied("x"): "denied",
        ObjectNotFound("a"): "not_found",
        AlreadyExists("a"): "exists",
        OSError("x"): "failed",
    }
    watch = StoreWatch()
    for error in errors:
        with pytest.raises(type(error)):
            CALLS[operation](WatchedStore(Broken(error), watch))
    there = MemoryStore()
    there.put("a", b"1")
    CALLS[operation](WatchedStore(there, watch))
    tally = watch.tally()
    assert tally.requests == {(operation, outcome): 1 for outcome in (*errors.values(), "ok")}
    assert sum(tally.buckets[operation]) == len(errors) + 1


def test_an_invalid_name_says_nothing_about_the_store() -> None:
    watch = StoreWatch()
    with pytest.raises(StoreError):
        WatchedStore(Broken(StoreError("cannot hold this name")), watch).put("a", b"")
    assert (watch.status().state, watch.tally().requests) == ("unknown", {})
