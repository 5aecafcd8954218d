"""A comparison with null over a batch without rows matches nothing, and does not fail."""

import pyarrow as pa

from ingester.query.ticket import predicate_of


def test_a_null_comparison_over_no_rows_selects_none() -> None:
    schema = pa.schema({"i": pa.int64()})
    empty = pa.RecordBatch.from_pylist([], schema)
    for raw in (["i", "=", None], ["i", "not in", [None]]):
        assert predicate_of([[raw]], schema).select(empty) == empty
