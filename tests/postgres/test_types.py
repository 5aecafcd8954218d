"""Texts of PostgreSQL become values, or are dealt with by their column's policy."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pytest

from ingester.postgres.types import arrow_values, column_type

BOOL, BYTEA, INT8, INT4, FLOAT4, FLOAT8 = 16, 17, 20, 23, 700, 701
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 1082, 1114, 1184, 1700, 2950


class Typed(NamedTuple):
    base_oid: int
    base_modifier: int = -1


def numeric(precision: int, scale: int) -> Typed:
    return Typed(NUMERIC, (precision << 16 | scale & 0x7FF) + 4)


@pytest.mark.parametrize(
    ("typed", "text", "value"),
    [
        (Typed(BOOL), "t", True),
        (Typed(BOOL), "f", False),
        (Typed(BYTEA), "\\x00ff", b"\x00\xff"),
        (Typed(INT8), "-9223372036854775808", -(2**63)),
        (Typed(FLOAT4), "1.5", 1.5),
        (Typed(FLOAT8), "-Infinity", float("-inf")),
        (numeric(12, 3), "-7.125", Decimal("-7.125")),
        (numeric(3, -2), "99900", Decimal(99900)),
        (numeric(3, 5), "-0.00999", Decimal("-0.00999")),
        (numeric(38, 38), f"-0.{'9' * 38}", Decimal(f"-0.{'9' * 38}")),
        (numeric(39, 0), "9" * 39, "9" * 39),
        (numeric(2, -37), f"99{'0' * 37}", f"99{'0' * 37}"),
        (Typed(NUMERIC), "1e400", "1e400"),
        (Typed(DATE), "2026-11-22", dt.date(2026, 11, 22)),
        (Typed(TIMESTAMP), "2026-11-22 01:02:03.5", dt.datetime(2026, 11, 22, 1, 2, 3, 500_000)),
        (
            Typed(TIMESTAMPTZ),
            "2026-11-22 01:02:03+00",
            dt.datetime(2026, 11, 22, 1, 2, 3, tzinfo=dt.UTC),
        ),
        (Typed(UUID), "6ecd8c99-4036-403d-bf84-cf8400f67836",
         "6ecd8c99-4036-403d-bf84-cf8400f67836"),
    ],
)  # fmt: skip
def test_a_text_becomes_its_value(typed: Typed, text: str, value: object) -> None:
    kind = column_type(typed)
    for texts in ([text, None], pa.array([text.encode(), None])):
        found = arrow_values(kind, texts)
        assert found.type == kind.arrow
        assert found.to_pylist() == [value, None]
