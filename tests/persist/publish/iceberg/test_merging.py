"""Each snapshot lists exactly the table's files, in few manifests, and writes little."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest
from fastavro import reader
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.publish.iceberg import IcebergTable, merging
from persist.publish.iceberg.manifests import ManifestFile, decode_list
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.iceberg.made_up import MadeUpTable
from tests.persist.publish.iceberg.reading import LONG_S, iceberg

ROOT = "memory://tests/"


def listed(store: Any, table: IcebergTable) -> list[ManifestFile]:
    """The manifests of the current snapshot."""
    found = table.newest_metadata()
    assert found is not None
    [current] = json.loads(found[1])["snapshots"][-1:]
    return decode_list(store.get(current["manifest-list"].removeprefix(ROOT)))


def entries_of(store: Any, manifest: ManifestFile) -> list[Any]:
    """A manifest's entries, as fastavro reads them."""
    return list(reader(io.BytesIO(store.get(manifest.path.removeprefix(ROOT)))))


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_history_is_listed_exactly(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "FULL", 12)
        patch.setattr(merging, "FULL_KEYED", 12)
        check_history(data)


def check_history(data: st.DataObject) -> None:
    store = MemoryStore()
    made, table = MadeUpTable(store, key=data.draw(st.sampled_from([(), ("n",)]))), iceberg(store)
    table.publish([made.last], retain_s=LONG_S)
    added_in: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        gone = data.draw(st.sets(st.sampled_from(sorted(added_in)))) if added_in else set()
        step = made.step(made.files(data.draw(st.integers(0, 9))), sorted(gone))
        if data.draw(st.booleans()):
            table = iceberg(store)
        table.publish([step], retain_s=LONG_S)
        number = step.place.number
        added_in = {path: n for path, n in added_in.items() if path not in gone}
        added_in |= {file.add.path: number for file in step.added}
        check_listed(store, table, number, added_in, gone)


def check_listed(
    store: Any, table: IcebergTable, number: int, added_in: dict[str, int], gone: set[str]
) -> None:
    manifests = listed(store, table)
    entries = [entry for manifest in manifests for entry in entries_of(store, manifest)]
    prefix = f"{ROOT}ns/t/v1/"
    names = {entry["data_file"]["file_path"].removeprefix(prefix): entry for entry in entries}
    live = {path: each for path, each in names.items() if each["status"] != 2}
    assert {path: each["snapshot_id"] for path, each in live.items()} == added_in
    assert all(each["sequence_number"] == each["snapshot_id"] for each in live.values())
    assert sum(each["status"] != 2 for each in entries) == len(added_in)
    new = {each.path for each in manifests if each.added_in == number}
    deleted = {path for path, each in names.items() if each["snapshot_id"] == number}
    deleted = {path for path in deleted if names[path]["status"] == 2}
    assert deleted == gone, "deleted entries are those of this snapshot"
    for manifest in manifests:
        assert manifest.live or manifest.path in new
        check_described(manifest, entries_of(store, manifest))


def check_described(manifest: ManifestFile, entries: list[Any]) -> None:
    counts = Counter(each["status"] for each in entries)
    rows: Counter[int] = Counter()
    for each in entries:
        rows[each["status"]] += each["data_file"]["record_count"]
    described = (manifest.existing, manifest.added, manifest.deleted)
    assert [(one.files, one.rows) for one in described] == [
        (counts[status], rows[status]) for status in range(3)
    ]
    [summary] = manifest.partitions
    values = [each["data_file"]["partition"]["i8_key"] for each in entries]
    assert not summary.contains_null
    assert summary.lower == min(values).to_bytes(4, "little")
    assert summary.upper == max(values).to_bytes(4, "little")
    live = [each["sequence_number"] for each in entries if each["status"] != 2]
    assert manifest.min_sequence == min(live, default=manifest.added_in)
    assert manifest.length > 0


def test_bytes_per_commit_do_not_grow_with_the_table() -> None:
    """Also a test of risingwave 13048: metadata that grows for ever."""
    store = Counting()
    made, table = MadeUpTable(store), iceberg(store)
    table.publish([made.last], retain_s=0)
    written = []
    for _ in range(20):
        store.bytes = 0
        for _ in range(25):
            table.publish([made.step(made.files(40))], retain_s=0)
        written.append(store.bytes // 25)
    assert made.last.state.file_count == 20_000
    assert len(listed(store, table)) < 16
    assert max(written[10:]) < 1.3 * max(written[:10]), written
    assert max(written) < 40_000, written


class Counting(MemoryStore):
    """Counts the bytes that are written."""

    bytes = 0

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> Any:
        self.bytes += memoryview(data).nbytes
        return super()._put(path, data, only_if_absent=only_if_absent)


def test_a_large_table_is_published_in_full_manifests() -> None:
    store = MemoryStore()
    made, table = MadeUpTable(store), iceberg(store)
    made.step(made.files(20_000))
    table.publish([made.complete()], retain_s=LONG_S)
    manifests = listed(store, table)
    assert [each.live for each in manifests] == [8_000, 8_000, 4_000]
    full = {each.path for each in manifests[:2]}
    table.publish([made.step(made.files(5_000))], retain_s=LONG_S)
    manifests = listed(store, table)
    assert {each.path for each in manifests} > full
    assert [each.live for each in manifests] == [8_000, 8_000, 9_000]


def test_a_publisher_that_starts_reads_only_manifests_of_touched_partitions() -> None:
    store = Reading()
    made, table = MadeUpTable(store, ["identity(i8)"], key=("n",)), iceberg(store)
    table.publish([made.last], retain_s=LONG_S)
    files = sorted(made.files(7 * 1_000), key=lambda add: str(add.values))
    for place in range(7):
        table.publish([made.step(files[place * 1_000 :][:1_000])], retain_s=LONG_S)
    table = iceberg(store)
    assert table.head() is not None
    store.paths.clear()
    table.publish([made.step((), [files[0].path])], retain_s=LONG_S)
    assert sum("/manifest-" in path for path in store.paths) == 1


def test_a_publisher_that_starts_reads_the_newest_manifests_first() -> None:
    store = Reading()
    made, table = MadeUpTable(store, [], key=("n",)), iceberg(store)
    table.publish([made.last], retain_s=LONG_S)
    for _ in range(3):
        table.publish([made.step(made.files(1_000))], retain_s=LONG_S)
    table = iceberg(store)
    assert table.head() is not None
    store.paths.clear()
    newest = made.last.added[-1].add.path
    table.publish([made.step((), [newest])], retain_s=LONG_S)
    assert sum("/manifest-" in path for path in store.paths) == 1


class Reading(MemoryStore):
    """Records what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def get(self, path: str) -> bytes:
        self.paths.append(path)
        return super().get(path)
