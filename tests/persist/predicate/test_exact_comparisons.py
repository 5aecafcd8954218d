"""Every comparison with every tempting value is that of exact Python, for rows and for bounds."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from ingester.client.filter_parser import parse_filter
from persist.parquet.stats import column_stats
from persist.predicate.literals import number, place
from persist.predicate.parse import BadFilter, parse_predicate
from tests.drivers.filter_model import (
    COLUMNS,
    OPERATORS,
    SCHEMA,
    batch_of,
    compared,
    denied,
    found_by,
    tempting_rows,
)

ROWS = tempting_rows()


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_a_comparison_is_exact(column: str) -> None:
    batch = batch_of(ROWS)
    bounds = [column_stats(pa.table(batch_of([row]))) for row in ROWS]
    for literal in COLUMNS[column].literals:
        for name in OPERATORS:
            for asked in (compared(column, name, literal), denied(compared(column, name, literal))):
                predicate = parse_predicate(parse_filter(asked.text), SCHEMA)
                expected = found_by(asked, ROWS)
                assert predicate.select(batch)["id"].to_pylist() == expected, asked.text
                for row, stats in zip(ROWS, bounds, strict=True):
                    if row["id"] in expected:
                        assert predicate.may_match(stats, 1), (asked.text, row[column])


def test_a_text_is_the_float_that_is_printed_like_it_or_else_its_digits() -> None:
    assert number("0.05") == 0.05
    assert number("1e400") == Decimal("1e400")
    assert number("9007199254740993.0") == Decimal(9007199254740993)


def test_a_number_lies_between_its_neighbours() -> None:
    below, above, is_value = place(3.5, pa.int64())
    assert (below, above, is_value) == (pa.scalar(3), pa.scalar(4), False)
    below, above, _ = place(16777217, pa.float32())
    assert (below, above) == tuple(pa.scalar(at, pa.float32()) for at in (16777216.0, 16777218.0))
    assert place(1000, pa.int8()).above is None


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), Decimal("1e999999999"), Decimal("NaN")]
)
def test_what_is_no_number_is_refused(value: float) -> None:
    for kind in (pa.int64(), pa.float64(), pa.decimal128(10, 2)):
        with pytest.raises(BadFilter, match="is not a value of type"):
            parse_predicate([[["v", ">", value]]], pa.schema({"v": kind}))
