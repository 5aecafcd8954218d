"""pyiceberg reads each published version exactly as our own reader does."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import reader
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.persist.publish.iceberg.reading import LONG_S, check_all, iceberg, opened, publish_each
from tests.persist.publish.mirrored import MirroredStore
from tests.persist.publish.tables import KINDS, TRANSFORMS, BuiltTable, partitioned, sample


def published(store: MirroredStore, built: BuiltTable) -> str:
    """Publish each step by itself; the location of the newest metadata."""
    return publish_each(iceberg(store), built.steps()).location


@pytest.mark.parametrize("field_ids", [True, False], ids=["ids", "names"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_version_is_read_as_it_was(tmp_path: Path, kind: str, field_ids: bool) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS[kind](store, field_ids=field_ids)
    numbers = check_all(published(store, built), built)
    last = built.steps()[-1].place.number
    first = 8 if kind == "redefined" else 1
    assert numbers == list(range(first, last + 1))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_partitions_of_each_transform_are_read(tmp_path: Path, transform: str) -> None:
    store = MirroredStore(tmp_path)
    built = partitioned(store, transform)
    check_all(published(store, built), built)


def test_a_table_is_opened_by_its_folder(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["appended"](store)
    location = published(store, built)
    assert opened(f"file://{tmp_path}/ns/t").metadata_location == location


def test_the_ids_of_snapshots_are_versions_and_their_changes_are_named(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["compacted"](store)
    table = opened(published(store, built))
    summaries: list[Any] = [each.summary for each in table.snapshots()]
    assert [each.operation.value for each in summaries] == [
        *["append"] * 5,
        "replace",
        "append",
        "replace",
    ]
    assert [each["ingester.version"] for each in summaries] == [str(n) for n in range(1, 9)]
    last = summaries[-1].additional_properties
    assert last["total-records"] == last["added-records"] == last["deleted-records"] == "40"
    removed = len(built.steps()[-1].removed)
    assert (last["total-data-files"], last["deleted-data-files"]) == ("3", str(removed))
    assert last["total-delete-files"] == "0"
    assert int(last["total-files-size"]) == built.state.bytes


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_grouping_of_steps_and_any_restarts_publish_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = MirroredStore(tmp_path_factory.mktemp("grouped"))
    built = KINDS[data.draw(st.sampled_from(sorted(KINDS)))](store)
    table, steps = iceberg(store), built.steps()
    head = table.head()
    while steps:
        count = data.draw(st.integers(1, len(steps)))
        head = table.publish(steps[:count], retain_s=LONG_S)
        assert head.place == steps[count - 1].place
        steps = steps[count:]
        if data.draw(st.booleans()):
            table = iceberg(store)
            assert table.head() == head
    assert head is not None
    check_all(head.location, built)


def test_steps_with_the_same_kind_of_change_become_one_snapshot(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["compacted"](store)
    head = iceberg(store).publish(built.steps(), retain_s=LONG_S)
    assert check_all(head.location, built) == [5, 6, 7, 8]
    built.change_nothing()
    head = iceberg(store).publish(built.steps(8), retain_s=LONG_S)
    assert check_all(head.location, built) == [5, 6, 7, 8, 9]
    last: Any = opened(head.location).current_snapshot()
    assert (last.summary.operation.value, last.summary["added-data-files"]) == ("append", "0")


def test_columns_that_came_within_one_publication_are_those_of_their_snapshot(
    tmp_path: Path,
) -> None:
    store = MirroredStore(tmp_path)
    built = BuiltTable(store, pa.schema([("n", pa.int64())]))
    table = iceberg(store)
    table.publish(built.steps(), retain_s=LONG_S)
    for name in ("a", "b"):
        built.add_columns(pa.field(name, pa.int64()))
        schema = built.definition.schema
        built.append(pa.table({column: [1, 2] for column in schema.names}, schema))
        built.compact()
    head = table.publish(built.steps(1), retain_s=LONG_S)
    assert check_all(head.location, built) == [1, 3, 5, 6, 7]


def test_a_complete_step_replaces_everything(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["keyed"](store)
    steps = built.steps()
    table = iceberg(store)
    table.publish(steps[:2], retain_s=LONG_S)
    away = complete(steps[3])
    head = table.publish([away], retain_s=LONG_S)
    assert check_all(head.location, built) == [2, 4]
    summary: Any = opened(head.location).snapshots()[-1].summary
    assert summary.operation.value == "overwrite"
    assert (summary["deleted-records"], summary["total-records"]) == ("20", "26")


def complete(step: Any) -> Any:
    """The step of a publisher that knows nothing of those before it."""
    return replace(step, added=tuple(step.files()), removed=(), complete=True)


def test_columns_of_names_that_need_care_are_read(tmp_path: Path) -> None:
    names = ["a b", "a_x20b", "é", "1st", "x.y", "n", 'q"', "UPPER", "upper_", "-", "😀"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    spec = [f"identity({name})" for name in ("a b", "a_x20b", "é", "1st", "x.y", "😀")]
    rows = pa.table({name: [place, None] for place, name in enumerate(names)}, schema)
    for field_ids in (True, False):
        store = MirroredStore(tmp_path / str(field_ids))
        built = BuiltTable(store, schema, spec, field_ids=field_ids)
        built.append(rows)
        check_all(published(store, built), built)


def test_incremental_readers_see_each_added_file_once(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["appended"](store)
    for first in range(60, 90, 6):
        built.append(sample(first, 6))
    table = opened(published(store, built))
    added: dict[int, list[str]] = {}
    for snapshot in table.snapshots():
        number = snapshot.snapshot_id
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == number:
                path = manifest.manifest_path.removeprefix(f"{store.url}/")
                entries: Iterator[Any] = reader(io.BytesIO(store.get(path)))
                new = [each["data_file"]["file_path"] for each in entries if each["status"] == 1]
                added.setdefault(number, []).extend(new)
    found = list(itertools.chain.from_iterable(added.values()))
    assert len(found) == len(set(found)) == built.state.file_count
    for step in built.steps():
        assert len(added.get(step.place.number, [])) == len(step.added)


def test_the_times_of_snapshots_never_go_back(tmp_path: Path) -> None:
    store = MirroredStore(tmp_path)
    built = KINDS["appended"](store)
    table = iceberg(store)
    for place, step in enumerate(built.steps()):
        head = table.publish([replace(step, at_ms=10_000 - place)], retain_s=LONG_S)
        assert head.at_ms == 10_000
