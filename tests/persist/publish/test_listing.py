"""Finding the published tables of a store."""

from __future__ import annotations

import pyarrow as pa

from persist.publish.listing import (
    has_namespace,
    is_published,
    namespaces,
    newest,
    published_tables,
)
from persist.publish.publisher import Publisher
from persist.store import StoreWatch, WatchedStore
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.tables import BuiltTable

ROWS = pa.table({"i": pa.array([1, 2], pa.int64())})


def test_a_store_lists_its_published_tables_and_the_newest_metadata_of_each() -> None:
    store = MemoryStore()
    for name in ("b", "a", "later", "off"):
        BuiltTable(store, ROWS.schema, table=name)
        if name != "later":
            Publisher(store, "ns", name).publish(["iceberg"], retain_s=3600)
    Publisher(store, "ns", "off").switch_off("iceberg")
    store.put("_ingesters/x", b"")
    store.put("other/file", b"")
    assert namespaces(store) == ["ns", "other"]
    assert published_tables(store, "ns") == ["a", "b"]
    assert published_tables(store, "other") == []
    assert has_namespace(store, "ns")
    assert not has_namespace(store, "nothing")
    assert not has_namespace(store, "_ingesters")
    assert is_published(store, "ns", "a")
    assert not is_published(store, "ns", "later")
    assert not is_published(store, "..", "")
    assert newest(store, "ns", "later") is None
    assert newest(store, "ns", "off") is None
    assert newest(store, "n\x1fs", "a") is None


def test_the_newest_metadata_is_that_of_the_head() -> None:
    store = MemoryStore()
    table, published = BuiltTable(store, ROWS.schema, table="t"), Publisher(store, "ns", "t")
    for _ in range(12):
        table.append(ROWS)
        (told,) = published.publish(["iceberg"], retain_s=3600)
        head, found = told.head, newest(store, "ns", "t")
        assert head is not None
        assert found is not None
        assert found[0] == head
        assert found[1] == store.get(head.location.removeprefix(f"{store.url}/"))


def test_a_thousand_tables_are_listed_with_two_requests_each() -> None:
    store, watch = MemoryStore(), StoreWatch()
    for number in range(1000):
        for path in ("_published/iceberg.json", "metadata/version-hint.text", "v1/data/1"):
            store.put(f"ns/t{number:04}/{path}", b"")
    assert len(published_tables(WatchedStore(store, watch), "ns")) == 1000
    asked = watch.tally().requests
    assert asked["exists", "ok"] == 2000
    assert asked["list", "ok"] == 1
