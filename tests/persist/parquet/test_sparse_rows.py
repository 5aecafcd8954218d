"""Rows that lack columns become the same files as rows with nulls in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.schema.align import align_table
from persist.parquet import encode as parquet
from persist.parquet import sort as picking
from persist.parquet.encode import encode_sorted, job_bytes, row_group_rows
from persist.parquet.reading import columns_with_values, sparse_rows
from persist.parquet.sort import sort_rows
from persist.parquet.sparse_rows import SparseRows, null_bytes
from persist.partitioning import UNPARTITIONED
from persist.table import DELETED, TableDefinition, schema_with_deletes

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us")),
        pa.field("tag", pa.string()),
        pa.field("v", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("point", POINT),
        pa.field("list", pa.list_(pa.int16())),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.integers(0, 20),
    "time": st.none() | st.integers(0, 50),
    "tag": st.none() | st.sampled_from("abc"),
    "v": st.none() | st.integers(0, 9).map(float),
    "flag": st.none() | st.booleans(),
    "point": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
    "list": st.none() | st.lists(st.integers(0, 9), max_size=2),
    "map": st.none() | st.lists(st.tuples(st.text("ab", max_size=1), st.integers(0, 9))),
}


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    found = []
    for _ in range(draw(st.integers(1, 5))):
        names = ["k", *draw(st.lists(st.sampled_from(SCHEMA.names[1:]), unique=True))]
        rows = draw(st.integers(0, 6))
        columns = [
            pa.array(
                draw(st.lists(VALUES[name], min_size=rows, max_size=rows)), SCHEMA.field(name).type
            )
            for name in names
        ]
        fields = [SCHEMA.field(name) for name in names]
        found.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return found


def _definition(order: str) -> TableDefinition:
    if order == "keyed":
        return TableDefinition(SCHEMA, UNPARTITIONED, primary_key=("k",))
    return TableDefinition(SCHEMA, UNPARTITIONED, sort_by=("tag", "v") if order == "said" else ())


@pytest.mark.parametrize("order", ["keyed", "said", "own"])
@pytest.mark.parametrize("joined", [True, False])
@given(given_=batches())
def test_files_equal_those_of_rows_with_all_columns(
    order: str, joined: bool, given_: list[pa.RecordBatch]
) -> None:
    definition = _definition(order)
    whole = align_table(given_, SCHEMA)
    expected = sort_rows(whole.combine_chunks(), definition)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picking, "MIN_ROWS_A_CHUNK", 256 if joined else 0)
        patch.setattr(parquet, "MIXED_BYTES", 40)
        rows = SparseRows.of(given_, SCHEMA)
        found = sort_rows(rows, definition)
        assert found.rows == expected.rows
        # The automatic order of columns with few values does not matter.
        if order != "own":
            assert found.order == expected.order
            assert found.slice().to_pylist() == expected.slice().to_pylist()
            for start in range(found.rows):
                some = found.slice(start, 2).to_pylist()
                assert some == expected.slice(start, 2).to_pylist()
        files = list(encode_sorted(rows, definition, metadata={}, target_bytes=1 << 30))
    if not found.rows:
        assert not files
        return
    [file] = files
    read = pq.ParquetFile(pa.BufferReader(file.data))
    assert read.schema_arrow.names == SCHEMA.names
    assert read.read().to_pylist() == _plain(found.slice())
    again = sparse_rows(read, SCHEMA)
    assert again.table().to_pylist() == _plain(found.slice())
    nulls = {f.name: whole[f.name].null_count for f in SCHEMA if order != "keyed"}
    assert {name: file.stats[name].nulls for name in nulls} == nulls


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(
        [
            pa.chunked_array([c.dictionary_decode() for c in column.chunks], pa.string())
            if pa.types.is_dictionary(column.type)
            else column
            for column in table.columns
        ],
        names=table.column_names,
    ).to_pylist()
    return found


@given(batches(), st.data())
def test_slices_and_filters_equal_those_of_rows_with_all_columns(
    given_: list[pa.RecordBatch], data: st.DataObject
) -> None:
    rows, whole = SparseRows.of(given_, SCHEMA), align_table(given_, SCHEMA)
    assert rows.table().to_pylist() == whole.to_pylist()
    assert rows.column("tag").to_pylist() == whole["tag"].to_pylist()
    start = data.draw(st.integers(0, rows.num_rows))
    count = data.draw(st.integers(0, rows.num_rows - start))
    sliced = rows.slice(start, count)
    assert sliced.num_rows == count
    assert sliced.table().to_pylist() == whole.slice(start, count).to_pylist()
    mask = data.draw(st.lists(st.booleans(), min_size=rows.num_rows, max_size=rows.num_rows))
    kept = rows.filter(np.array(mask, np.bool_)).table()
    assert kept.to_pylist() == whole.filter(pa.array(mask, pa.bool_())).to_pylist()


def test_delete_marks_keep_their_rows() -> None:
    definition = _definition("keyed")
    ups = pa.record_batch({"k": pa.array([1, 2, 3]), "v": pa.array([1.0, 2.0, 3.0])})
    gone = pa.record_batch({"k": pa.array([2, 4]), DELETED: pa.array([True, True])})
    rows = SparseRows.of([ups, gone], schema_with_deletes(SCHEMA))
    assert sort_rows(rows, definition).slice()["k"].to_pylist() == [1, 3]


WIDE = pa.schema(
    [
        *(pa.field(f"i{n}", pa.int64()) for n in range(500)),
        *(pa.field(f"s{n}", pa.string()) for n in range(400)),
        *(pa.field(f"p{n}", POINT) for n in range(50)),
        *(pa.field(f"l{n}", pa.list_(pa.int64())) for n in range(50)),
    ]
)
ROWS = 100_000


_pools: list[pa.MemoryPool] = []
"""Allocated memory may outlive the block, and needs its pool until then."""


@contextmanager
def allocating_at_most(nbytes: int) -> Iterator[None]:
    """The block allocates at most this much Arrow memory."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    _pools.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) <= nbytes


def _narrow(name: str, seed: int = 0, rows: int = ROWS) -> pa.RecordBatch:
    values = np.random.default_rng(seed).integers(0, 1 << 40, rows)
    return pa.record_batch({name: pa.array(values)})


@pytest.mark.parametrize("sort_by", [(), ("i7",), ("s1", "i7", "i8")])
def test_absent_columns_take_no_memory_in_files(sort_by: tuple[str, ...]) -> None:
    """With its nulls, the table would take a gigabyte."""
    definition = TableDefinition(WIDE, UNPARTITIONED, sort_by=sort_by)
    half = ROWS // 2
    given_ = [_narrow("i7", 1, half), _narrow("i8", 2, half)]
    expected = [f"i{n}" for n in (7, 8)]
    with allocating_at_most(60 << 20):
        rows = SparseRows.of(given_, WIDE)
        [file] = encode_sorted(rows, definition, metadata={}, target_bytes=128 << 20)
        read = pq.ParquetFile(pa.BufferReader(file.data))
        assert read.schema_arrow.names == WIDE.names
        assert file.data.size < 3 * sum(batch.nbytes for batch in given_)
        groups = range(read.metadata.num_row_groups)
        for group in groups:
            assert set(columns_with_values(read.metadata, group)) <= set(expected)
        again = sparse_rows(read)
        assert {*again.parts} == {*expected}
    sums = {name: again.column(name).to_numpy() for name in expected}
    for batch, name in zip(given_, expected, strict=True):
        assert np.nansum(sums[name]) == batch[name].to_numpy().sum()


def test_row_groups_are_sized_by_their_nulls_too() -> None:
    few = SparseRows.of([_narrow("i7")], pa.schema([WIDE.field("i7"), WIDE.field("i8")]))
    assert row_group_rows(few) == parquet.ROW_GROUP_ROWS
    wide = SparseRows.of([_narrow("i7")], WIDE)
    rows = row_group_rows(wide)
    decoded = sum(null_bytes(field.type) for field in WIDE)
    assert parquet.WIDE_GROUP_ROWS <= rows < parquet.ROW_GROUP_ROWS
    assert rows * decoded <= parquet.DECODED_BYTES
    wider = pa.schema([pa.field(f"i{n}", pa.int64()) for n in range(9_000)])
    narrow = SparseRows.of([_narrow("i7")], wider)
    assert row_group_rows(narrow) == parquet.WIDE_GROUP_ROWS


def test_the_memory_for_a_file_of_a_wide_table_is_estimated() -> None:
    assert job_bytes(ROWS, 1 << 20, 12, False) < 1.2 * (1 << 20)
    assert job_bytes(1 << 20, 8 << 20, 1_500, False) > 50 << 20
    assert job_bytes(ROWS, 1 << 20, 12, True) >= parquet.MIXED_BYTES


def test_a_block_of_rows_with_different_columns_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each batch has another column, and sorting interleaves them."""
    monkeypatch.setattr(parquet, "MIXED_BYTES", 1 << 20)
    schema = pa.schema([pa.field("time", pa.int64()), *list(WIDE)[:100]])
    draw = np.random.default_rng(3)
    given_ = [
        pa.record_batch({"time": draw.integers(0, 1 << 40, 1_000), f"i{n}": np.arange(1_000)})
        for n in range(100)
    ]
    ordered = sort_rows(SparseRows.of(given_, schema), TableDefinition(schema, UNPARTITIONED))
    count = ordered.fitting(0, 100_000, 1 << 20)
    assert 500 < count <= (1 << 20) // (101 * 8)
    with allocating_at_most(12 << 20):
        piece = ordered.slice(0, count)
        assert piece.num_rows == count
        del piece
    # In their original order, few columns are adjacent.
    plain = sort_rows(
        SparseRows.of(given_, schema), TableDefinition(schema, UNPARTITIONED, sort_by=("i200",))
    )
    assert plain.fitting(0, 3_000, 1 << 20) == 3_000
