"""The demo's comparison finds every difference in every column."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.demo.totals import disagreements, spark_totals, totals_of

SCHEMA = pa.schema(
    [("delay", pa.int64()), ("carrier", pa.string()), ("at", pa.timestamp("s", "UTC"))]
)
NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)
ROWS = pa.Table.from_pylist(
    [
        {"delay": -3, "carrier": "UA", "at": NOON},
        {"delay": None, "carrier": "9E", "at": NOON},
        {"delay": 10, "carrier": None, "at": NOON},
    ],
    SCHEMA,
)


def test_totals_are_what_one_would_count_by_hand() -> None:
    assert totals_of(ROWS, SCHEMA) == {
        "rows": 3,
        "sum(delay)": 7,
        "nulls(delay)": 1,
        "length(carrier)": 4,
        "nulls(carrier)": 1,
        "seconds(at)": 3 * 1357041600,
        "nulls(at)": 0,
    }


def test_the_unit_of_a_timestamp_changes_no_total() -> None:
    stored = ROWS.cast(SCHEMA.set(2, pa.field("at", pa.timestamp("us", "UTC"))))
    assert totals_of(stored, SCHEMA) == totals_of(ROWS, SCHEMA)


def test_no_rows_have_totals_of_zero() -> None:
    assert set(totals_of(ROWS.slice(0, 0), SCHEMA).values()) == {0}


def test_equal_totals_agree() -> None:
    source = totals_of(ROWS, SCHEMA)
    assert disagreements("Spark", dict(source), source) == []


@given(st.sampled_from(sorted(totals_of(ROWS, SCHEMA))), st.integers().filter(bool))
def test_one_wrong_total_is_named_with_both_numbers(name: str, by: int) -> None:
    source = totals_of(ROWS, SCHEMA)
    wrong = source[name] + by
    (sentence,) = disagreements("flights, Spark:", source | {name: wrong}, source)
    assert (
        sentence == f"flights, Spark: has {name} = {wrong}; the source has {source[name]} ({by:+d})"
    )


def test_a_missing_total_is_a_disagreement() -> None:
    source = totals_of(ROWS, SCHEMA)
    found = {name: total for name, total in source.items() if name != "nulls(at)"}
    assert disagreements("Spark", found, source) == ["Spark has no nulls(at); the source has 0"]


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_row_that_differs_in_any_one_column_is_found(column: str) -> None:
    values = ROWS[column].to_pylist()
    changed = {"delay": 11, "carrier": "UAL", "at": NOON + datetime.timedelta(seconds=1)}
    other = pa.array([changed[column], *values[1:]], SCHEMA.field(column).type)
    position = SCHEMA.get_field_index(column)
    rows = ROWS.set_column(position, column, other)
    found = disagreements("Spark", totals_of(rows, SCHEMA), totals_of(ROWS, SCHEMA))
    assert [sentence for sentence in found if f"({column})" in sentence]


def test_a_lost_row_and_a_doubled_row_are_found() -> None:
    source = totals_of(ROWS, SCHEMA)
    for rows in (ROWS.slice(1), pa.concat_tables([ROWS, ROWS.slice(1, 1)])):
        assert disagreements("Spark", totals_of(rows, SCHEMA), source)


def test_spark_is_asked_for_the_same_totals_by_name() -> None:
    assert list(spark_totals(SCHEMA)) == list(totals_of(ROWS, SCHEMA))


def test_a_type_without_a_total_is_refused_by_name() -> None:
    schema = pa.schema([("ratio", pa.float64())])
    with pytest.raises(TypeError, match="'ratio' of type double"):
        spark_totals(schema)
