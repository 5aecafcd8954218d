"""Listing the folders of every kind of store."""

from __future__ import annotations

from persist.store import ObjectStore, StoreWatch, WatchedStore, folders
from tests.drivers.memory_store import MemoryStore
from tests.drivers.s3_server import PAGE


def fill(store: ObjectStore) -> None:
    for path in ("a/t/1", "a/t/2/x", "a/t-2/1", "a/file", "a.b/1", "file", "a/u/deep/er/1"):
        store.put(path, b"")


def test_a_store_lists_its_folders_without_their_objects(store: ObjectStore) -> None:
    fill(store)
    assert list(folders(store, "")) == ["a.b", "a"]
    assert list(folders(store, "a/")) == ["t-2", "t", "u"]
    assert list(folders(store, "none/")) == []


def test_a_watched_store_and_one_that_lists_only_objects_answer_the_same(
    store: ObjectStore,
) -> None:
    watch = StoreWatch()
    plain = MemoryStore()
    for each in (store, plain):
        fill(each)
    for each in (WatchedStore(store, watch), plain, WatchedStore(plain, watch)):
        assert list(folders(each, "a/")) == ["t-2", "t", "u"]
        assert list(folders(each, "")) == ["a.b", "a"]
    assert watch.tally().requests["list", "ok"] == 4


def test_more_folders_than_a_page_are_all_listed(store: ObjectStore) -> None:
    names = [f"t{number:04}" for number in range(PAGE + 2)]
    for name in names:
        store.put(f"many/{name}/x", b"")
    assert list(folders(store, "many/")) == names
