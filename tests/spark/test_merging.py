"""Buffered rows of a keyed table are merged with files: the last row wins, deletes remove rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ingester.spark.read.scan import last_of_each_key, local_rows, merged

Operation = tuple[int, str, str, int]


def tail_of(operations: list[Operation]) -> pa.Table:
    names = ["a", "b", "_op", "v"]
    columns = list(zip(*operations, strict=True)) or [()] * 4
    types = [pa.int64(), pa.string(), pa.string(), pa.int64()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=names).select(["a", "b", "v", "_op"])


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from("xy"),
        st.sampled_from(["upsert", "delete"]),
        st.integers(0, 9),
    )
)


@given(OPERATIONS)
def test_of_equal_keys_the_last_row_is_left_in_its_place(operations: list[Operation]) -> None:
    rows = last_of_each_key(tail_of(operations), ["a", "b"]).to_pylist()
    last = {(a, b): index for index, (a, b, _, _) in enumerate(operations)}
    kept = [operations[index] for index in sorted(last.values())]
    assert [(row["a"], row["b"], row["_op"], row["v"]) for row in rows] == kept


@pytest.mark.spark
def test_the_tail_wins_and_deletes_take_away(spark: SparkSession) -> None:
    files = local_rows(
        spark, pa.table({"a": [1, 1, 2, 3], "b": ["x", "y", "x", "x"], "v": [10, 11, 12, 13]})
    )
    tail = tail_of(
        [
            (1, "x", "upsert", 20),
            (1, "y", "delete", 0),
            (2, "x", "delete", 0),
            (2, "x", "upsert", 21),
            (4, "x", "upsert", 22),
            (5, "x", "upsert", 23),
            (5, "x", "delete", 0),
            (6, "x", "delete", 0),
        ]
    )
    result = merged(spark, files, tail, ["a", "b"])
    assert result.columns == ["a", "b", "v"]
    assert sorted(tuple(row) for row in result.collect()) == [
        (1, "x", 20),
        (2, "x", 21),
        (3, "x", 13),
        (4, "x", 22),
    ]
    assert merged(spark, files, tail.slice(0, 0), ["a", "b"]).count() == 4
