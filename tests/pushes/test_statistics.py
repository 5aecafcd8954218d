"""What a manifest knows of a version's data, and what it does not."""

from __future__ import annotations

import base64

import pyarrow as pa

from ingester.pushes.regions.region import statistics_of
from persist.manifest import EMPTY, Add, ColumnStats, Schema, Spec, TableState
from persist.manifest.draft import StateDraft


def a_schema(schema_id: int, *columns: str) -> Schema:
    schema = pa.schema([(name, pa.int64()) for name in columns])
    return Schema(schema_id=schema_id, arrow=base64.b64encode(schema.serialize()).decode())


def a_file(name: str, rows: int, schema_id: int, **nulls: int | None) -> Add:
    return Add(
        path=f"data/{name}.parquet",
        kind="push",
        rows=rows,
        bytes=rows * 10,
        spec_id=1,
        values=(),
        stats={column: ColumnStats(nulls=count) for column, count in nulls.items()},
        writer="w",
        epoch=1,
        first_seq=1,
        last_seq=rows,
        schema_id=schema_id,
        at="2026-11-26T08:00:00Z",
    )


def a_state(*actions: object) -> TableState:
    draft = StateDraft(EMPTY)
    draft.apply(actions)  # type: ignore[arg-type]
    return draft.finish(1, "u", ((1, "u"),))


def test_nulls_are_summed_over_files_and_older_files_lack_newer_columns() -> None:
    state = a_state(
        a_schema(1, "a"),
        Spec(spec_id=1, fields=()),
        a_file("old", 100, 1, a=10),
        a_schema(2, "a", "b"),
        a_file("new", 50, 2, a=0, b=5),
    )
    told = statistics_of(state)
    assert (told.table_version, told.rows, told.bytes) == (1, 150, 1500)
    assert told.nulls == {"a": 10, "b": 105}


def test_a_file_that_does_not_say_leaves_its_columns_unknown() -> None:
    state = a_state(
        a_schema(1, "a", "b"),
        Spec(spec_id=1, fields=()),
        a_file("one", 100, 1, a=10, b=None),
        a_file("two", 100, 1, a=10),
    )
    assert statistics_of(state).nulls == {"a": 20, "b": None}


def test_an_empty_table_has_nothing() -> None:
    assert statistics_of(EMPTY).rows == 0
