"""Columns are described as Delta has them, or refused by name with what helps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from persist.publish.delta import DeltaTable
from persist.publish.steps import NotPublishable
from persist.store import open_store
from tests.persist.publish.delta.reading import commit_lines, log_names, publish_all, root_of
from tests.persist.publish.tables import SCHEMA, BuiltTable, appended, evolved, redefined


def test_each_type_has_its_counterpart(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    publish_all(store, appended(store))
    found = json.loads(deltalake.DeltaTable(root_of(store)).schema().to_json())
    kinds = {field["name"]: field["type"] for field in found["fields"]}
    inner = {name: kinds.pop(name)["type"] for name in ("s", "l", "ls", "m")}
    assert inner == {"s": "struct", "l": "array", "ls": "array", "m": "map"}
    assert list(kinds.values()) == [
        "long", "timestamp", "timestamp_ntz", "date", "string", "boolean", "byte", "short",
        "integer", "float", "double", "decimal(9,2)", "decimal(38,10)", "binary",
    ]  # fmt: skip
    assert all(field["nullable"] for field in found["fields"])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.uint8(), "'c' has the type uint8; Delta has no unsigned integers: .* int16"),
        (pa.uint64(), r"int64 or decimal\(20, 0\)"),
        (pa.list_(pa.struct([("x", pa.uint32())])), r"uint32 \(inside list<.*int64"),
        (pa.timestamp("ns", "UTC"), "timestamp_unit 'us'"),
        (pa.map_(pa.string(), pa.timestamp("ns")), "timestamp_unit 'us'"),
        (pa.null(), "Delta needs a type"),
        (pa.time64("us"), "no such type"),
    ],
)
def test_types_without_a_counterpart_are_refused_by_name(
    kind: pa.DataType, told: str, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    table = BuiltTable(store, pa.schema([("n", pa.int64()), ("c", kind)]))
    published = DeltaTable(store, "ns", "t")
    assert len(published.unsupported(table.definition)) == 1
    with pytest.raises(NotPublishable, match=f"ns/t cannot be published as delta: column .*{told}"):
        published.publish(table.steps(), retain_s=0)
    assert log_names(store) == []


def test_steps_before_a_type_without_a_counterpart_are_published(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    table.add_columns(pa.field("u", pa.uint16()))
    published = DeltaTable(store, "ns", "t")
    with pytest.raises(NotPublishable, match="'u' has the type uint16"):
        published.publish(table.steps(), retain_s=0)
    head = published.head()
    assert head is not None and head.place == table.steps()[-2].place


def test_wall_clocks_need_a_feature_of_readers_and_nothing_else_does(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    publish_all(store, redefined(store))
    before, after = (deltalake.DeltaTable(root_of(store), version=n).protocol() for n in (4, 8))
    assert before.reader_features == ["timestampNtz"]
    assert before.writer_features == ["timestampNtz", "ingester.published"]
    assert after.reader_features in (None, [])
    assert after.writer_features == ["ingester.published"]


def test_the_description_is_repeated_only_when_it_changes(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = evolved(store)
    for step in table.steps():  # each by another publisher
        DeltaTable(store, "ns", "t").publish([step], retain_s=0)
    described = [
        step.place.number
        for step in table.steps()
        if any("metaData" in line for line in commit_lines(store, step.place.number))
    ]
    schemas = [step.definition.schema for step in table.steps()]
    changed = [n for n, (a, b) in enumerate(pairwise(schemas), 2) if a != b]
    assert described == [1, *changed]
    ids = {
        deltalake.DeltaTable(root_of(store), version=n).metadata().id
        for n in range(1, len(schemas) + 1)
    }
    assert len(ids) == 1
    assert schemas[-1] == SCHEMA
