"""Orders that once lost or kept the wrong rows: the largest integers, keys sorted by others."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from persist.parquet.sort import sort_rows
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition
from tests.persist.parquet.test_sort import (
    SCHEMA,
    VALUES,
    _filled,
    _key,
    _numbers,
    _table,
    orders,
    tables,
)


def test_the_largest_integer_sorts() -> None:
    """It once overflowed, which ended the daemon, and every restart after it."""
    for kind in (pa.int64(), pa.timestamp("us")):
        table = pa.table({"time": pa.array([2**63 - 1, 2**63 - 2], pa.int64()).cast(kind)})
        found = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED, sort_by=("time",)))
        assert found.slice()["time"].cast(pa.int64()).to_pylist() == [2**63 - 2, 2**63 - 1]


@given(tables, orders, st.sampled_from(list(VALUES)))
def test_a_keyed_table_with_an_order_of_its_own_keeps_the_last_row_too(
    rows: list[dict[str, Any]], order: list[str], key: str
) -> None:
    rows = [{**row, key: _filled(key, row[key])} for row in rows]
    definition = TableDefinition(SCHEMA, UNPARTITIONED, primary_key=(key,), sort_by=tuple(order))
    found = sort_rows(_table(rows), definition)
    last = {row[key]: n for n, row in enumerate(rows)}
    kept = _numbers(found.slice())
    assert kept == sorted(last.values(), key=lambda n: _key(rows[n], [*order, key]))
