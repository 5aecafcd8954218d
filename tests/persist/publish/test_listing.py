"""Finding the published tables of a store."""

from __future__ import annotations

import pyarrow as pa

from persist.publish.iceberg import IcebergTable
from persist.publish.listing import (
    has_namespace,
    is_published,
    namespaces,
    newest,
    published_tables,
)
from persist.store import StoreWatch, WatchedStore
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.tables import BuiltTable

ROWS = pa.table({"i": pa.array([1, 2], pa.int64())})


def test_a_store_lists_its_published_tables_and_the_newest_metadata_of_each() -> None:
    store = MemoryStore()
    for name in ("b", "a", "later"):
        table = BuiltTable(store, ROWS.schema, table=name)
        if name != "later":
            IcebergTable(store, "ns", name).publish(table.steps(), retain_s=3600)
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
    assert newest(store, "n\x1fs", "a") is None


def test_the_newest_metadata_is_that_of_the_head() -> None:
    store = MemoryStore()
    table, published = BuiltTable(store, ROWS.schema, table="t"), IcebergTable(store, "ns", "t")
    for _ in range(12):
        table.append(ROWS)
        head = published.publish(table.steps(), retain_s=3600)
        found = newest(store, "ns", "t")
        assert found is not None
        assert found[0] == head
        assert found[1] == store.get(head.location.removeprefix(f"{store.url}/"))


def test_a_thousand_tables_are_listed_with_one_request_each() -> None:
    store, watch = MemoryStore(), StoreWatch()
    for number in range(1000):
        for path in ("_current/1", "metadata/version-hint.text", "v1/_manifest/1", "v1/data/1"):
            store.put(f"ns/t{number:04}/{path}", b"")
    assert len(published_tables(WatchedStore(store, watch), "ns")) == 1000
    asked = watch.tally().requests
    assert asked["exists", "ok"] == 1000
    assert asked["list", "ok"] == 1
