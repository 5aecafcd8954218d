"""Columns in data files have their numbers in the table, at any depth."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.parquet.encode import encode_sorted
from persist.parquet.field_ids import HIGHEST, first_field_id, with_field_ids
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import UNPARTITIONED
from persist.table import ABOVE, UNNUMBERED, TableDefinition
from tests.drivers.all_types import all_types, check_same
from tests.drivers.column_numbers import numbers_of

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field(
            "place",
            pa.struct(
                {
                    "at": pa.struct({"x": pa.float64(), "y": pa.float64()}),
                    "names": pa.map_(pa.string(), pa.list_(pa.int32())),
                }
            ),
        ),
        pa.field("last", pa.decimal128(10, 2)),
    ]
)
NO_VALUES = pa.Table.from_arrays(
    [pa.array([3, 1, 2]), *(pa.nulls(3, field.type) for field in list(NESTED)[1:])], schema=NESTED
)
NUMBERS = {
    "id": [1],
    "tags": [2, 3],
    "place": [4, 5, 6, 7, 8, 9, 10, 11],
    "last": [12],
}


def written(rows: pa.Table | SparseRows, definition: TableDefinition) -> list[pa.Schema]:
    files = encode_sorted(rows, definition, metadata={}, target_bytes=1 << 20)
    return [pq.read_schema(pa.BufferReader(file.data)) for file in files]


def test_numbers_stand_at_every_depth() -> None:
    [schema] = written(NO_VALUES, TableDefinition(NESTED, UNPARTITIONED))
    assert numbers_of(schema) == NUMBERS


def test_columns_that_no_row_has_are_numbered_too() -> None:
    definition = TableDefinition(NESTED, UNPARTITIONED, ("id",))
    batch = pa.record_batch([[1, 2]], schema=pa.schema([NESTED.field("id")]))
    [schema] = written(SparseRows.of([batch], NESTED), definition)
    assert numbers_of(schema) == NUMBERS


def test_a_table_that_is_defined_again_has_other_numbers() -> None:
    before = TableDefinition(NESTED, UNPARTITIONED, schema_id=7)
    again = TableDefinition(pa.schema([("id", pa.int64())]), UNPARTITIONED).redefined(before)
    assert again.first_schema_id == 7 + ABOVE
    [schema] = written(pa.table({"id": [1]}), again)
    assert numbers_of(schema) == {"id": [106_001]}


def test_files_whose_table_may_number_them_differently_have_no_numbers() -> None:
    definition = TableDefinition(NESTED, UNPARTITIONED)
    [schema] = written(NO_VALUES, replace(definition, first_schema_id=UNNUMBERED))
    assert {number for column in numbers_of(schema).values() for number in column} == {None}


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_values_are_the_same_with_numbers_and_without(unit: str) -> None:
    rows = all_types(unit)
    definition = TableDefinition(rows.schema, UNPARTITIONED)
    without = replace(definition, first_schema_id=UNNUMBERED)
    numbered, plain = (
        [
            pq.read_table(pa.BufferReader(file.data))
            for file in encode_sorted(rows, one, metadata={}, target_bytes=1 << 30)
        ]
        for one in (definition, without)
    )
    for one, other in zip(numbered, plain, strict=True):
        check_same(one, other)
        assert one.schema.equals(other.schema)
    expected = numbers_of(with_field_ids(rows.schema, 1))
    assert [numbers_of(table.schema) for table in numbered] == [expected]


kinds = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), pa.date32()]),
    lambda inner: (
        inner.map(pa.list_)
        | st.tuples(st.just(pa.string()), inner).map(lambda two: pa.map_(*two))
        | st.dictionaries(st.text("abc", min_size=1), inner, min_size=1, max_size=3).map(pa.struct)
    ),
    max_leaves=5,
)


@given(st.lists(kinds, min_size=1, max_size=8), st.integers(1, 8))
def test_a_number_never_changes_when_columns_are_appended(
    types: list[pa.DataType], kept: int
) -> None:
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(types)])
    later = numbers_of(with_field_ids(schema, 1))
    earlier = numbers_of(with_field_ids(pa.schema(list(schema)[:kept]), 1))
    assert earlier == {name: later[name] for name in earlier}
    every = [number for column in later.values() for number in column]
    assert every == list(range(1, len(every) + 1))


def test_numbers_do_not_run_out_however_often_a_table_is_defined_again() -> None:
    """A table that is copied again each hour for ten years."""
    firsts = [first_field_id(1 + ABOVE * number) for number in range(90_000)]
    assert max(firsts) + 1_000_000 < HIGHEST
    assert min(firsts) == 1
    for number in range(0, 90_000, 1000):
        near = firsts[number : number + 1000]
        assert len(set(near)) == len(near)
        assert min(abs(a - b) for a, b in pairwise(near)) >= 100_000
