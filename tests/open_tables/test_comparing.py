"""A different value, however small, is a difference; the form of a type is none."""

from __future__ import annotations

from math import nan

import pyarrow as pa
import pytest

from tests.drivers.all_types import all_types
from tests.open_tables.comparing import difference
from tests.open_tables.terms import Term, passing, sql, without_nan

ROWS = pa.table({"n": [1, 2], "f": [0.0, nan], "t": pa.array([5, None], pa.timestamp("us"))})


def test_the_same_rows_in_another_order_and_in_larger_types_do_not_differ() -> None:
    rows = all_types("us")
    assert difference(rows.take(list(reversed(range(len(rows))))), rows) is None
    texts = pa.table({"n": [1], "s": pa.array(["x"], pa.string_view())})
    assert difference(texts, pa.table({"n": [1], "s": ["x"]})) is None


@pytest.mark.parametrize(
    "other",
    [
        ROWS.slice(1),
        ROWS.drop_columns(["f"]),
        ROWS.set_column(1, "f", pa.array([-0.0, nan])),
        ROWS.set_column(1, "f", pa.array([0.0, None])),
        ROWS.set_column(2, "t", pa.array([4, None], pa.timestamp("us"))),
        ROWS.set_column(2, "t", pa.array([5, 0], pa.timestamp("us"))),
    ],
    ids=["a row", "a column", "a sign", "null for NaN", "a microsecond", "a value for null"],
)
def test_each_difference_is_found(other: pa.Table) -> None:
    assert difference(other, ROWS) is not None


def test_a_filter_is_the_same_in_arrow_and_sql() -> None:
    terms = (Term("n", ">", 1), Term("s", "=", "it's \\"))
    rows = pa.table({"n": [1, 2, 3], "s": ["it's \\", "it's \\", "x"]})
    assert passing(rows, terms)["n"].to_pylist() == [2]
    assert sql(terms, "duckdb") == """"n" > 1 AND "s" = 'it''s \\'"""
    assert sql(terms, "spark") == """`n` > 1 AND `s` = 'it\\'s \\\\'"""
    assert without_nan(ROWS, (Term("f", ">", 0.0),))["n"].to_pylist() == [1]
