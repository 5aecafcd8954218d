"""Floats: NaN is not equal to anything, the two zeros are equal, in memory and in files."""

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.query.ticket import predicate_of
from persist.parquet.encode import encode
from persist.parquet.row_group_stats import group_bounds

SCHEMA = pa.schema({"f": pa.float64()})


def test_minus_zero_is_in_a_list_with_zero() -> None:
    batch = pa.RecordBatch.from_pylist([{"f": -0.0}], SCHEMA)  # "=" finds it, "in" does not
    assert predicate_of([[["f", "=", 0.0]]], SCHEMA).select(batch).num_rows == 1
    assert predicate_of([[["f", "in", [0.0]]]], SCHEMA).select(batch).num_rows == 1


def test_a_row_group_with_a_nan_is_not_pruned_by_unequal() -> None:
    table = pa.table({"f": [5.0, float("nan")]})  # Parquet's bounds leave NaN out
    footer = pq.ParquetFile(encode([table], {})).metadata
    assert predicate_of([[["f", "!=", 5.0]]], SCHEMA).may_match(group_bounds(footer, 0, SCHEMA), 2)
