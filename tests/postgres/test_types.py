"""Texts of PostgreSQL become values, or the column's policy decides."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal, localcontext
from typing import NamedTuple, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.types import Policy, ValueNotKept, arrow_values, column_type

BOOL, BYTEA, INT8, INT4, FLOAT4, FLOAT8 = 16, 17, 20, 23, 700, 701
TEXT, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 25, 1082, 1114, 1184, 1700, 2950


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
    kind = column_type(*typed)
    for texts in ([text, None], pa.array([text.encode(), None])):
        found = arrow_values(kind, texts)
        assert found.type == kind.arrow
        assert found.to_pylist() == [value, None]
    assert arrow_values(kind, [None, None]).to_pylist() == [None, None]
    assert arrow_values(kind, pa.nulls(1, pa.binary())).to_pylist() == [None]


NOT_KEPT: list[tuple[Typed, str, list[str]]] = [
    (
        Typed(DATE),
        "2026-11-22",
        ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31"],
    ),
    (
        Typed(TIMESTAMP),
        "9999-12-31 23:59:59.999999",
        ["infinity", "-infinity", "0001-12-31 23:59:59 BC", "10000-01-01 00:00:00"],
    ),
    (
        Typed(TIMESTAMPTZ),
        "0001-01-01 00:00:00+00",
        ["infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"],
    ),
    (numeric(5, 2), "-999.99", ["NaN", "Infinity", "-Infinity", "1000.00", "0.001"]),
    # Arrow silently changes the last two numbers.
    (numeric(38, 2), "1" * 36, ["NaN", "1" * 37, "1" * 38, "9" * 39]),
]


@pytest.mark.parametrize(("typed", "kept", "texts"), NOT_KEPT)
def test_a_value_without_counterpart_is_dealt_with_by_policy(
    typed: Typed, kept: str, texts: list[str]
) -> None:
    refuse, null, text = (column_type(*typed, policy) for policy in get_args(Policy))
    assert refuse.arrow == null.arrow == arrow_values(refuse, [kept]).type
    [value] = arrow_values(refuse, [kept]).to_pylist()
    for other in texts:
        with pytest.raises(ValueNotKept, match="column 'price'") as caught:
            arrow_values(refuse, [None, kept, other, kept], "price")
        assert (caught.value.row_index, caught.value.text) == (2, other)
        assert other in str(caught.value)
        assert arrow_values(null, [None, kept, other]).to_pylist() == [None, value, None]
    assert text.arrow == pa.string()
    assert arrow_values(text, [*texts, kept]).to_pylist() == [*texts, kept]
    # A batch may hold several kinds of unsupported values.
    assert arrow_values(null, [*texts, kept] * 2).to_pylist() == [*([None] * len(texts)), value] * 2


def test_only_what_has_values_without_counterpart_becomes_text() -> None:
    for oid in (BOOL, BYTEA, INT4, INT8, FLOAT4, FLOAT8):
        assert column_type(oid, policy="text").arrow == column_type(oid).arrow


@pytest.mark.parametrize("oid", [TEXT, DATE, BOOL, BYTEA, FLOAT8])
def test_bytes_that_are_no_utf8_are_refused_by_column(oid: int) -> None:
    texts = pa.array([b"caf\xe9", None], pa.binary())
    kind = column_type(oid)
    with pytest.raises(ValueNotKept, match=r"column 'place': 'caf\\xe9' ") as caught:
        arrow_values(kind, texts, "place")
    assert caught.value.row_index == 0
    assert arrow_values(kind._replace(policy="null"), texts).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("oid", "text"),
    [(INT4, "2147483648"), (INT4, ""), (FLOAT4, "1e39"), (FLOAT8, "1e400"), (BOOL, "true"),
     (BYTEA, "\\x0"), (BYTEA, "\\x0g"), (BYTEA, "00"), (BYTEA, f"\\x{'0' * 5001}")],
)  # fmt: skip
def test_a_text_of_another_type_is_refused(oid: int, text: str) -> None:
    with pytest.raises(ValueNotKept, match="column 'c'"):
        arrow_values(column_type(oid), [text], "c")


@given(st.lists(st.none() | st.binary(max_size=900), max_size=9), st.integers(0, 3))
def test_any_bytes_are_read(values: list[bytes | None], behind: int) -> None:
    texts = pa.array([None if v is None else f"\\x{v.hex()}".encode() for v in values], pa.binary())
    found = arrow_values(column_type(BYTEA), texts.slice(behind))
    found.validate(full=True)
    assert found.to_pylist() == values[behind:]


@given(st.integers(1, 60), st.integers(-50, 60), st.integers(), st.integers(0, 60))
def test_a_numeric_is_exact_or_refused(
    precision: int, scale: int, digits: int, places: int
) -> None:
    kind = column_type(*numeric(precision, scale))
    with localcontext(prec=500):
        value = Decimal(digits).scaleb(-places).normalize()
    try:
        [found] = arrow_values(kind, [f"{value:f}"]).to_pylist()
    except ValueNotKept:
        assert not pa.types.is_string(kind.arrow)
        with localcontext(prec=500):
            below = abs(value) < Decimal(10) ** (precision - scale)
            assert not below or value != round(value, max(scale, 0))
    else:
        assert Decimal(found) == value


@given(st.datetimes())
def test_any_moment_of_the_calendar_is_kept(moment: dt.datetime) -> None:
    text = moment.isoformat(" ")
    text = text.rstrip("0") if moment.microsecond else text
    plain = arrow_values(column_type(TIMESTAMP), [text])
    zoned = arrow_values(column_type(TIMESTAMPTZ), [f"{text}+00"])
    day = arrow_values(column_type(DATE), [text[:10]])
    assert plain.to_pylist() == [moment]
    assert zoned.to_pylist() == [moment.replace(tzinfo=dt.UTC)]
    assert day.to_pylist() == [moment.date()]
