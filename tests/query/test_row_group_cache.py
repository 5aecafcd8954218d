"""The cache of decoded row groups decodes each group once while it is read, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ingester.errors import StoreUnreachable
from ingester.query import row_group_cache
from ingester.query.row_group_cache import RowGroupCache
from persist.parquet.encode import encode
from persist.parquet.reading import DataFile, decoded_bytes
from persist.store.local import LocalStore
from tests.drivers.waiting import until

FILES, ROWS = 8, 10_000
PATH = "ns/t/v1/data/{}.parquet"
GROUP_BYTES = ROWS * 8 + ROWS // 8


def file(number: int) -> DataFile:
    """A data file of which only the path is known."""
    return DataFile(PATH.format(number))


class CountedGroups(RowGroupCache):
    """A cache that counts the decodes of each file."""

    def __init__(self, store: LocalStore, **options: Any) -> None:
        super().__init__(store, **options)
        self.decoded: Counter[str] = Counter()

    def decode(self, footer: Any, key: Any) -> pa.RecordBatch:
        self.decoded[key[0]] += 1
        return super().decode(footer, key)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    rng = np.random.default_rng(3)
    for number in range(FILES):
        table = pa.table({"x": rng.integers(0, 1 << 60, ROWS)})
        store.put(PATH.format(number), encode([table], {}))
    return store


def test_readers_of_one_group_decode_it_once(store: LocalStore) -> None:
    groups = CountedGroups(store)
    together = threading.Barrier(6)
    found: list[pa.RecordBatch] = []

    def read() -> None:
        together.wait()
        found.append(groups.group(file(0), 0, ("x",)).batch)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert groups.decoded == {PATH.format(0): 1}
    assert len({batch["x"].buffers()[1].address for batch in found}) == 1


def test_scattered_readers_do_not_push_out_each_others_groups(store: LocalStore) -> None:
    """Four readers share room for two groups; each group is decoded for one reader at a time."""
    groups = CountedGroups(store, cache_bytes=2 * GROUP_BYTES + GROUP_BYTES // 2)
    parts = 50

    def read(first: int) -> None:
        for number in range(first, FILES, 4):
            for _ in range(parts):
                assert groups.group(file(number), 0, ("x",), first).batch.num_rows == ROWS
                time.sleep(0.001)
            groups.done(PATH.format(number), 0, ("x",), first)

    readers = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # Without patience every part would be decoded again: 400 times.
    assert sum(groups.decoded.values()) <= 2 * FILES
    assert groups.nbytes <= 3 * GROUP_BYTES


def test_it_stays_within_its_bytes(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lease_s = 0.1
    monkeypatch.setattr(row_group_cache, "LEASE_S", lease_s)
    groups = CountedGroups(store, cache_bytes=3 * GROUP_BYTES)
    for number in range(FILES):
        groups.group(file(number), 0, ("x",))
        assert groups.nbytes <= 3 * GROUP_BYTES
        time.sleep(lease_s / 4)
    assert groups.nbytes > 0


def test_a_group_larger_than_the_cache_is_read_all_the_same(store: LocalStore) -> None:
    groups = CountedGroups(store, cache_bytes=1)
    for _ in range(5):
        assert groups.group(file(0), 0, ("x",)).batch.num_rows == ROWS
    assert groups.decoded == {PATH.format(0): 1}


def test_what_nobody_reads_is_forgotten(store: LocalStore) -> None:
    groups = CountedGroups(store)
    groups.group(file(0), 0, ("x",))
    groups.forget_idle(60.0)
    assert groups.nbytes == GROUP_BYTES
    groups.shrink()
    assert groups.nbytes == 0
    groups.group(file(0), 0, ("x",))
    assert groups.decoded == {PATH.format(0): 2}


def test_a_file_that_is_gone_is_named_and_leaves_nothing_reserved(store: LocalStore) -> None:
    groups = CountedGroups(store, cache_bytes=2 * GROUP_BYTES)
    groups.footer(file(0))
    (Path(store.url.removeprefix("file://")) / PATH.format(0)).unlink()
    for _ in range(4):
        with pytest.raises(StoreUnreachable, match=r"data/0\.parquet"):
            groups.group(file(0), 0, ("x",))
    assert groups.nbytes == 0
    assert groups.group(file(1), 0, ("x",)).batch.num_rows == ROWS


def test_a_group_that_was_read_to_its_end_makes_room_at_once(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone reader with room for one group does not wait for its own lease."""
    groups = CountedGroups(store, cache_bytes=GROUP_BYTES + GROUP_BYTES // 2)
    waited: list[float | None] = []
    wait = threading.Condition.wait

    def noted(condition: threading.Condition, timeout: float | None = None) -> bool:
        waited.append(timeout)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    for number in range(FILES):
        for _ in range(3):
            groups.group(file(number), 0, ("x",), reader=1)
        groups.done(PATH.format(number), 0, ("x",), reader=1)
    assert waited == []
    assert sum(groups.decoded.values()) == FILES


def test_after_all_patience_one_group_at_a_time_goes_in(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers never finish and the store is slow; memory stays bounded."""
    patience_s = 0.2
    monkeypatch.setattr(row_group_cache, "ROOM_PATIENCE_S", patience_s)
    at_work, most, lock = 0, 0, threading.Lock()

    class SlowGroups(CountedGroups):
        def decode(self, footer: Any, key: Any) -> pa.RecordBatch:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
            time.sleep(1.2 * patience_s)
            try:
                return super().decode(footer, key)
            finally:
                with lock:
                    at_work -= 1

    groups = SlowGroups(store, cache_bytes=GROUP_BYTES + GROUP_BYTES // 2)
    readers = [
        threading.Thread(target=groups.group, args=(file(number), 0, ("x",), number))
        for number in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert most == 1
    assert groups.nbytes <= 2 * GROUP_BYTES


def test_decoded_sizes_are_foreseen_where_dictionaries_hide_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    tags = pa.array([f"a-rather-long-tag-{n % 5}" for n in range(ROWS)])
    table = pa.table({"x": pa.array(range(ROWS)), "s": tags, "t": tags.dictionary_encode()})
    store.put(PATH.format(0), encode([table], {}))
    groups = RowGroupCache(store)
    footer = groups.footer(file(0))
    for columns in (("x",), ("s",), ("x", "s", "t"), ("nowhere",)):
        expected = decoded_bytes(footer, 0, columns)
        real = groups.group(file(0), 0, columns).nbytes
        assert real * 0.8 <= expected <= real * 1.5 + 1


def test_groups_are_decoded_ahead_once_and_by_another_thread(store: LocalStore) -> None:
    groups = CountedGroups(store)
    assert groups.prefetch(file(0), 0, ("x",), 1)
    until(lambda: bool(groups.decoded), "a group to be decoded ahead")
    assert groups.prefetch(file(0), 0, ("x",), 1), "it is there, or on its way"
    assert groups.group(file(0), 0, ("x",), 1).batch.num_rows == ROWS
    assert groups.decoded == {PATH.format(0): 1}


def test_what_is_decoded_ahead_does_not_push_out_what_is_being_read(store: LocalStore) -> None:
    nbytes = RowGroupCache(store).group(file(0), 0, ("x",)).nbytes
    groups = RowGroupCache(store, cache_bytes=nbytes * 3)
    groups.group(file(0), 0, ("x",), 1)
    assert not groups.prefetch(file(1), 0, ("x",), 1), "two of three would be leased"
    groups.done(PATH.format(0), 0, ("x",), 1)
    assert groups.prefetch(file(1), 0, ("x",), 1)
    assert groups.group(file(1), 0, ("x",), 1).batch.num_rows == ROWS
