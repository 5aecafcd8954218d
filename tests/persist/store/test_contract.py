"""The contract of object stores, tested on every kind of store: see persist/store/contract.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.store import AlreadyExists, ObjectNotFound, ObjectStore, check_store
from tests.drivers.s3_server import PAGE

ODD_NAMES = [
    "time_day=2026-11-21/a.parquet",
    "host=a%2Fb/50% off.parquet",
    "with space/plus+and&and#and?.x",
    "zürich/日本/🦉.parquet",
    "zip_key=007/~tilde!$'()*,;:@[]",
    "_manifest/00000000000000000041.commit",
]


def test_a_stored_object_reads_back(store: ObjectStore) -> None:
    before = store.now()
    info = store.put("a/b", b"content")
    assert store.get("a/b") == b"content"
    assert info.bytes == 7
    # Whole seconds on S3, and a coarse clock for file times on Linux.
    assert before - timedelta(seconds=1) <= info.at <= store.now() + timedelta(seconds=1)
    assert info.at.utcoffset() == timedelta(0)


def test_an_object_may_be_empty(store: ObjectStore) -> None:
    assert store.put("empty", b"").bytes == 0
    assert store.get("empty") == b""
    with store.open("empty") as file:
        assert file.read() == b""


@pytest.mark.parametrize("wrap", [bytearray, memoryview, pa.py_buffer], ids=lambda f: f.__name__)
def test_any_buffer_can_be_stored(store: ObjectStore, wrap: type) -> None:
    # Above 1 MiB the HTTP client treats a body differently.
    content = bytes(range(256)) * 5000
    assert store.put("put", wrap(content)).bytes == len(content)
    assert store.create("create", wrap(content)).bytes == len(content)
    assert store.get("put") == content
    assert store.get("create") == content


def test_a_memoryview_of_wider_items_is_stored_as_its_bytes(store: ObjectStore) -> None:
    numbers = memoryview(bytes(range(64))).cast("Q")
    assert store.put("numbers", numbers).bytes == 64
    assert store.get("numbers") == bytes(range(64))


@pytest.mark.parametrize("missing", ["no", "no/such", "there/below"])
def test_a_missing_object_is_reported_by_name(store: ObjectStore, missing: str) -> None:
    store.put("there", b"an object is no folder")
    with pytest.raises(ObjectNotFound) as got:
        store.get(missing)
    with pytest.raises(ObjectNotFound) as opened:
        store.open(missing)
    assert got.value.path == opened.value.path == missing
    assert store.exists(missing) is None


def test_a_folder_is_not_an_object(store: ObjectStore) -> None:
    store.put("folder/object", b"x")
    assert store.exists("folder") is None
    with pytest.raises(ObjectNotFound):
        store.get("folder")
    with pytest.raises(ObjectNotFound):
        store.open("folder")
    store.delete("folder")
    assert store.get("folder/object") == b"x"


def test_exists_returns_size_and_time(store: ObjectStore) -> None:
    put = store.put("a/b", b"12345")
    there = store.exists("a/b")
    assert there is not None
    assert (there.path, there.bytes) == ("a/b", 5)
    assert abs(there.at - put.at) <= timedelta(seconds=1)


def test_a_second_create_is_refused_and_the_first_content_stays(store: ObjectStore) -> None:
    assert store.create("v/1.commit", b"first").bytes == 5
    with pytest.raises(AlreadyExists) as refused:
        store.create("v/1.commit", b"second")
    assert refused.value.path == "v/1.commit"
    assert store.get("v/1.commit") == b"first"


def test_an_existing_object_cannot_be_created_and_a_deleted_one_can(store: ObjectStore) -> None:
    store.put("name", b"put")
    with pytest.raises(AlreadyExists):
        store.create("name", b"created")
    store.delete("name")
    store.create("name", b"created")
    assert store.get("name") == b"created"


def test_of_sixteen_racing_creates_exactly_one_wins(store: ObjectStore) -> None:
    for round_ in range(5):
        name = f"race/{round_}"
        start = threading.Barrier(16)

        def create(who: int, name: str = name, start: threading.Barrier = start) -> bytes | None:
            content = f"written by {who}".encode() * 100
            start.wait()
            try:
                store.create(name, content)
            except AlreadyExists:
                return None
            return content

        with ThreadPoolExecutor(16) as pool:
            won = [content for content in pool.map(create, range(16)) if content is not None]
        assert won == [store.get(name)]


def test_a_reader_never_sees_a_mix_of_two_puts(store: ObjectStore) -> None:
    contents = {bytes([letter]) * (200_000 + 1000 * letter) for letter in b"abc"}
    store.put("hot", min(contents))
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set():
            assert store.get("hot") in contents
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for content in sorted(contents) * 10:
                store.put("hot", content)
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)


def test_delete_removes_and_ignores_a_missing_object(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    assert store.exists("a/b") is None
    store.delete("a/b")
    store.delete("never/there")
    assert list(store.list("")) == []


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_returned_unchanged(store: ObjectStore, name: str) -> None:
    store.put(name, name.encode())
    assert store.get(name) == name.encode()
    assert [found.path for found in store.list("")] == [name]
    assert [found.path for found in store.list(name.split("/")[0] + "/")] == [name]
    with store.open(name) as file:
        assert file.read() == name.encode()
    with pytest.raises(AlreadyExists):
        store.create(name, b"")
    store.delete(name)
    assert store.exists(name) is None


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "./a", "a/../b", "a\0b"])
def test_a_path_that_could_leave_the_store_is_refused(store: ObjectStore, name: str) -> None:
    for call in (store.get, store.exists, store.open, store.delete):
        with pytest.raises(ValueError, match="cannot name an object"):
            call(name)
    with pytest.raises(ValueError, match="cannot name an object"):
        store.put(name, b"")
    with pytest.raises(ValueError, match="cannot name an object"):
        store.create(name, b"")


def test_a_listing_is_in_the_order_of_whole_paths(store: ObjectStore) -> None:
    # '-' and '.' sort before '/', letters after it, so a folder and its name sort differently.
    names = ["a-b/x", "a.txt", "a/1", "a/b/2", "a/b0", "a0", "b", "é/x", "日", "🦉"]
    for name in reversed(names):
        store.put(name, b"x" * len(name))
    assert [found.path for found in store.list("")] == names
    assert [found.bytes for found in store.list("")] == [len(name) for name in names]
    assert [found.path for found in store.list("a/")] == ["a/1", "a/b/2", "a/b0"]
    for position, name in enumerate(names):
        after = [found.path for found in store.list("", start_after=name)]
        assert after == names[position + 1 :]


def test_start_after_need_not_exist_and_may_lie_outside_the_prefix(store: ObjectStore) -> None:
    for name in ("m/1", "m/3", "n/1"):
        store.put(name, b"")
    assert [found.path for found in store.list("m/", start_after="m/2")] == ["m/3"]
    assert [found.path for found in store.list("m/", start_after="a")] == ["m/1", "m/3"]
    assert [found.path for found in store.list("m/", start_after="n")] == []
    assert [found.path for found in store.list("", start_after="m")] == ["m/1", "m/3", "n/1"]


def test_a_prefix_is_a_folder(store: ObjectStore) -> None:
    store.put("ab/1", b"")
    assert list(store.list("a/")) == []
    assert list(store.list("ab/1/")) == []
    with pytest.raises(ValueError, match="not a folder"):
        list(store.list("a"))


def test_a_listing_of_several_pages_is_complete_and_ordered(store: ObjectStore) -> None:
    names = [f"many/{number:020d}" for number in range(1, 3 * PAGE + 11)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    assert [found.path for found in store.list("many/")] == names
    later = [found.path for found in store.list("many/", start_after=names[49])]
    assert later == names[50:]


def test_parquet_is_read_through_open_column_by_column(store: ObjectStore) -> None:
    table = pa.table({name: pa.array(range(50_000)) for name in "abcdefgh"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10_000)
    store.put("data/table.parquet", sink.getvalue())
    with store.open("data/table.parquet") as file:
        parquet = pq.ParquetFile(file)
        assert parquet.read(["g"]) == table.select(["g"])
        assert parquet.read_row_group(3) == table.slice(30_000, 10_000)
        assert file.size() == sink.getvalue().size


def test_the_start_up_probe_passes_and_leaves_nothing(store: ObjectStore) -> None:
    store.put("kept", b"")
    check_store(store)
    assert [found.path for found in store.list("")] == ["kept"]


def test_the_url_names_the_location_without_secrets(store: ObjectStore) -> None:
    assert "://" in store.url
    assert not store.url.endswith("/")
    assert "secret" not in store.url + repr(store)
