"""A key that occurs in two files is found at any position, and no other key is reported."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import Add
from persist.parquet.encode import encode_sorted
from persist.parquet.key_spans import first_repeated, repeated_key
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition
from tests.drivers.memory_store import MemoryStore

SCHEMAS = {
    kind: pa.schema([pa.field("k", type_, False), pa.field("l", pa.int64(), False)])
    for kind, type_ in (
        ("integers", pa.int64()),
        ("texts", pa.string()),
        ("bytes", pa.binary()),
        ("decimals", pa.decimal128(9, 2)),
        ("times", pa.timestamp("us")),
    )
}
Keys = list[tuple[int, int]]


def table_of(kind: str, keys: Keys) -> pa.Table:
    """Rows with these keys in the types of ``kind``; small numbers, as texts sort differently."""
    first = pa.array([key[0] for key in keys], pa.int64())
    schema = SCHEMAS[kind]
    if kind == "bytes":
        first = first.cast(pa.string())
    elif kind == "decimals":
        first = first.cast(pa.decimal128(20))
    second = pa.array([key[1] for key in keys], pa.int64())
    return pa.table([first.cast(schema.field("k").type), second], schema=schema)


def put(store: Any, kind: str, keys: Keys) -> list[Add]:
    """A file of these rows."""
    definition = TableDefinition(SCHEMAS[kind], UNPARTITIONED, primary_key=("k", "l"))
    origin = FileOrigin("push", "me", definition, (1, ()))
    files = encode_sorted(
        table_of(kind, keys), definition, metadata=origin.facts(), target_bytes=1 << 30
    )
    return [put_file(store, "t/v1", file, origin) for file in files]


@pytest.mark.parametrize("kind", SCHEMAS)
@settings(max_examples=15)
@given(
    st.lists(st.sets(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=1), max_size=5),
    st.sampled_from([1, 100, 1 << 20]),
)
def test_a_repeated_key_is_found_whatever_the_memory_limit(
    kind: str, files: list[set[tuple[int, int]]], room: int
) -> None:
    store: Any = MemoryStore()
    adds = [add for keys in files for add in put(store, kind, sorted(keys))]
    definition = TableDefinition(SCHEMAS[kind], UNPARTITIONED, primary_key=("k", "l"))
    all_keys = [key for keys in files for key in keys]
    twice = {key for key in all_keys if all_keys.count(key) > 1}
    found = repeated_key(store, "t/v1", adds, definition, room)
    wanted = table_of(kind, sorted(twice)).to_pylist()
    assert (found in wanted) if twice else found is None


def test_a_repeated_key_among_given_rows_is_named() -> None:
    rows = SparseRows.of_table(table_of("texts", [(1, 1), (2, 1), (1, 2), (2, 1)]))
    assert first_repeated(rows, ["k", "l"]) == {"k": "2", "l": 1}
    assert first_repeated(rows, ["k"]) in ({"k": "1"}, {"k": "2"})
    assert first_repeated(SparseRows.of_table(table_of("texts", [(1, 1)])), ["k"]) is None
