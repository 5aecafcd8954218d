"""Filters evaluated in exact Python, with rows and filters that tempt an engine to round.

A filter is a pair: its text, and its meaning, which is True, False or None (null) for a row. As in
SQL, null comes from null; NaN is a value for which every comparison but ``!=`` is false.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Row = dict[str, Any]

INF, NAN = float("inf"), float("nan")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPPOSITE = {"=": "!=", "<": ">=", "<=": ">"}


class Filter(NamedTuple):
    """A filter and what it means for a row."""

    text: str
    meaning: Callable[[Row], bool | None]


class Literal(NamedTuple):
    """A value in a filter: its text, and the Python value that it is."""

    text: str
    value: Any


class Tempting(NamedTuple):
    """A column: its type, its values, and the values that filters name."""

    type: pa.DataType
    values: Sequence[Any]
    literals: Sequence[Literal]


def _number(text: str) -> Literal:
    """A number beside integers: a float only if it is printed like the text."""
    if text.lstrip("-").isdigit():
        return Literal(text, int(text))
    near, digits = float(text), Decimal(text)
    return Literal(text, near if Decimal(repr(near)) == digits else digits)


def _double(text: str) -> Literal:
    found = _number(text)
    near = float(text)
    is_float = not isinstance(found.value, int) and math.isfinite(near)
    return found._replace(value=near) if is_float else found


def _single(text: str) -> Literal:
    """A fraction that is printed like a float32 is that float32."""
    found = _double(text)
    if not isinstance(found.value, float) or found.value.is_integer():
        return found
    near = np.float32(found.value)
    return found._replace(value=float(near)) if float(str(near)) == found.value else found


def _day(text: str) -> Literal:
    return Literal(f"'{text}'", dt.date.fromisoformat(text))


def _moment(text: str) -> Literal:
    return Literal(f"'{text}'", dt.datetime.fromisoformat(text))


_WHOLE = "-1 0 1 0.5 -0.5 1e18 999999999999999999 999999999999999998 9007199254740993"
_WHOLE += " 9007199254740992.5 1e3 127 128 -129 9223372036854775807 9223372036854775808"
_WHOLE += " -9223372036854775809 18446744073709551615 18446744073709551616 1e300 -1e300"
_FRACTIONS = "0 -0.0 0.1 -0.1 65.5 9007199254740992 9007199254740993 1e23 1e400 -1e400 16777216"
_FRACTIONS += " 16777217 16777216.5 1.7976931348623157e308 5e-324 3.5e38"
_MONEY = "0.05 0.5 -0.05 0.055 '0.05' '0.10' 0 1 99999999.99 100000000 1e8 1e30 -1e30"
_LONG = "0.000000000000000001 1.000000000000000001 12345678901234567890.123456789012345678"
_LONG += " 12345678901234567890.1234567890123456785 '1' 0 1 1.5 99999999999999999999 1e37"
_DAYS = [
    *("0001-01-01", "0001-01-02", "1582-10-04", "1582-10-05", "1582-10-10", "1582-10-15"),
    *("1582-10-20", "1883-11-18", "1900-01-01", "1969-12-31", "1970-01-01", "2011-12-29"),
    *("2011-12-30", "2011-12-31", "9999-12-30", "9999-12-31"),
]
_PRICES = "-0.05 0 0.05 0.06 0.50 1 99999999.99 -99999999.99"
_LONGS = "0 1 0.000000000000000001 1.000000000000000001 1.5 99999999999999999999"
_LONGS += " 12345678901234567890.123456789012345678 -99999999999999999999.999999999999999999"
_CLOCKS = [
    f"{day}T{clock}" for day in _DAYS for clock in ("00:00:00", "12:00:00", "23:59:59.999999")
]
_BYTES = [b"", b"\0", b"a", b"a\0", b"ab", b"\x7f", b"\x80", b"\xff"]
_TEXTS = ["", "A", "a", "ab", "it's", "é", "e\u0301", "\ud7ffx", "\ue000", "\U0001f600", "x" * 70]


def _price(text: str) -> Literal:
    return Literal(text, Decimal(text.strip("'")))


COLUMNS: dict[str, Tempting] = {
    "i": Tempting(
        pa.int64(),
        [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 10**18 - 2, 10**18 - 1, 10**18, 2**63 - 1],
        [*map(_number, _WHOLE.split())],
    ),
    "i8": Tempting(pa.int8(), [-128, -1, 0, 1, 127], [*map(_number, _WHOLE.split())]),
    "u": Tempting(
        pa.uint64(),
        [0, 1, 2**53 + 1, 10**18 - 1, 2**63 - 1, 2**63, 2**64 - 1],
        [*map(_number, _WHOLE.split())],
    ),
    "f": Tempting(
        pa.float64(),
        [NAN, -INF, -0.0, 0.0, 5e-324, 0.1, 65.5, 2.0**53, 1e23, 1.7976931348623157e308, INF],
        [*map(_double, _FRACTIONS.split())],
    ),
    "zero": Tempting(pa.float64(), [-0.0, 0.0, -0.0], [*map(_double, ("0", "-0.0", "1", "-1"))]),
    "g": Tempting(
        pa.float32(),
        [NAN, -INF, -0.0, 0.0, float(np.float32(0.1)), 65.5, 16777216.0, 16777218.0, INF],
        [*map(_single, _FRACTIONS.split())],
    ),
    "price": Tempting(
        pa.decimal128(10, 2), [*map(Decimal, _PRICES.split())], [*map(_price, _MONEY.split())]
    ),
    "long": Tempting(
        pa.decimal128(38, 18), [*map(Decimal, _LONGS.split())], [*map(_price, _LONG.split())]
    ),
    "whole": Tempting(
        pa.decimal128(38, 0),
        [*map(Decimal, (10**38 - 1, 10**23, 2**64, 0, -1))],
        [*map(_price, ("1e23", str(10**23), str(2**64), "-0.5", "0", "1e38"))],
    ),
    "s": Tempting(
        pa.string(), _TEXTS, [Literal(f"'{t.replace(chr(39), 2 * chr(39))}'", t) for t in _TEXTS]
    ),
    "y": Tempting(
        pa.binary(),
        _BYTES,
        [Literal(f"'{base64.b64encode(value).decode()}'", value) for value in _BYTES],
    ),
    "b": Tempting(pa.bool_(), [True, False], [Literal("true", True), Literal("false", False)]),
    "d": Tempting(pa.date32(), [*map(dt.date.fromisoformat, _DAYS)], [*map(_day, _DAYS)]),
    "t": Tempting(
        pa.timestamp("us", "UTC"),
        [dt.datetime.fromisoformat(f"{text}+00:00") for text in _CLOCKS],
        [_moment(f"{text}Z") for text in _CLOCKS]
        + [_moment(f"{day}T12:00:00+01:00") for day in _DAYS]
        + [Literal(f"'{day}'", dt.datetime.fromisoformat(f"{day}T00:00:00Z")) for day in _DAYS],
    ),
    "wall": Tempting(
        pa.timestamp("us"),
        [dt.datetime.fromisoformat(text) for text in _CLOCKS],
        [*map(_moment, _CLOCKS)],
    ),
}
SCHEMA = pa.schema([("id", pa.int64()), *((name, each.type) for name, each in COLUMNS.items())])


def tempting_rows() -> list[Row]:
    """Rows that have every value of every column, each column with a null in between."""
    count = max(len(each.values) for each in COLUMNS.values()) + 1
    cycled = {name: [*each.values, None] for name, each in COLUMNS.items()}
    return [
        {"id": n, **{name: values[n % len(values)] for name, values in cycled.items()}}
        for n in range(count)
    ]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as a batch of :data:`SCHEMA`."""
    return pa.RecordBatch.from_pylist(list(rows), SCHEMA)


def found_by(filter_: Filter, rows: Sequence[Row]) -> list[int]:
    """The ids of the rows for which the filter is true."""
    return [row["id"] for row in rows if filter_.meaning(row) is True]


def _holds(name: str, held: Any, value: Any) -> bool:
    if held != held:  # NaN, whose order beside a Decimal is an error in Python
        return name == "!="
    return bool(OPERATORS[name](held, value))


def compared(column: str, name: str, literal: Literal) -> Filter:
    """A comparison of a column with a value."""

    def meaning(row: Row) -> bool | None:
        held = row[column]
        return None if held is None else _holds(name, held, literal.value)

    return Filter(f"{column} {name} {literal.text}", meaning)


def _listed(column: str, literals: Sequence[Literal]) -> Filter:
    def meaning(row: Row) -> bool | None:
        held = row[column]
        return None if held is None else any(_holds("=", held, each.value) for each in literals)

    return Filter(f"{column} in ({', '.join(each.text for each in literals)})", meaning)


def _between(column: str, low: Literal, high: Literal) -> Filter:
    def meaning(row: Row) -> bool | None:
        held = row[column]
        if held is None:
            return None
        return _holds(">=", held, low.value) and _holds("<=", held, high.value)

    return Filter(f"{column} between {low.text} and {high.text}", meaning)


def _is_null(column: str) -> Filter:
    return Filter(f"{column} is null", lambda row: row[column] is None)


def denied(inner: Filter) -> Filter:
    """The negation of a filter."""

    def meaning(row: Row) -> bool | None:
        value = inner.meaning(row)
        return None if value is None else not value

    return Filter(f"not ({inner.text})", meaning)


def _both(left: Filter, right: Filter) -> Filter:
    def meaning(row: Row) -> bool | None:
        values = (left.meaning(row), right.meaning(row))
        return False if False in values else None if None in values else True

    return Filter(f"({left.text}) and ({right.text})", meaning)


def _either(left: Filter, right: Filter) -> Filter:
    def meaning(row: Row) -> bool | None:
        values = (left.meaning(row), right.meaning(row))
        return True if True in values else None if None in values else False

    return Filter(f"({left.text}) or ({right.text})", meaning)


def _leaves(column: str) -> st.SearchStrategy[Filter]:
    literals = st.sampled_from(COLUMNS[column].literals)
    return st.one_of(
        st.builds(compared, st.just(column), st.sampled_from(sorted(OPERATORS)), literals),
        st.builds(_listed, st.just(column), st.lists(literals, min_size=1, max_size=14)),
        st.builds(_between, st.just(column), literals, literals),
        st.builds(_is_null, st.just(column)),
    )


comparisons: st.SearchStrategy[tuple[str, Literal]] = st.sampled_from(
    [(name, literal) for name, each in COLUMNS.items() for literal in each.literals]
)
"""A column and a value that it may be compared with."""
filters: st.SearchStrategy[Filter] = st.recursive(
    st.sampled_from(sorted(COLUMNS)).flatmap(_leaves),
    lambda inner: st.one_of(
        st.builds(denied, inner), st.builds(_both, inner, inner), st.builds(_either, inner, inner)
    ),
    max_leaves=4,
)
