"""Rows with values that compare in unusual ways, for tests of filters."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

GROUPS, GROUP_ROWS = 7, 4
_LONG = "x" * 5000
_INF = float("inf")
_NAN = float("nan")
_NEGATIVE_NAN, _SIGNALLING_NAN = struct.unpack(
    "<dd", struct.pack("<QQ", 0xFFF8 << 48, 0x7FF4 << 48)
)
_NULLS = [None] * 4


def _four(value: object) -> list[Any]:
    return [value] * 4


def _decimals(digits: str) -> list[list[Any]]:
    """Return decimals with the largest number of digits, and with few."""
    most, one = Decimal(digits), Decimal(1).scaleb(int(Decimal(digits).as_tuple().exponent))
    return [
        _four(Decimal("-1.5")),
        [most.copy_negate(), most, None, Decimal(0)],
        _four(Decimal(0)),
        [-one, one, Decimal("1.27"), Decimal("1.28")],
        _NULLS,
        [Decimal("-1.5"), Decimal("-1.51"), Decimal("-1.49"), None],
        _four(Decimal("1.5")),
    ]


def _unsigned(bits: int) -> list[list[Any]]:
    most, half = 2**bits - 1, 2 ** (bits - 1)
    return [
        *(_four(most), [0, most, None, half], _four(0), [half - 1, half, half + 1, 1]),
        *(_NULLS, _four(half), [0, 1, None, 2]),
    ]


def _signed(bits: int) -> list[list[Any]]:
    most = 2 ** (bits - 1) - 1
    return [
        *(_four(-1), [-most - 1, most, None, 0], _four(0), _four(most)),
        *(_NULLS, _four(-most - 1), [-1, 0, 1, None]),
    ]


_DAYS = [
    _four(dt.date(1969, 12, 31)),
    [dt.date(1, 1, 2), dt.date(9999, 12, 30), None, dt.date(1970, 1, 1)],
    _four(dt.date(1970, 1, 1)),
    # Days around the end of Spark's older calendar.
    [dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1500, 2, 28), dt.date(1883, 11, 18)],
    _NULLS,
    _four(dt.date(1900, 1, 1)),
    [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1969, 12, 30), None],
]


def _moments(zone: dt.timezone | None) -> list[list[Any]]:
    just_before = dt.time(23, 59, 59, 999_999)
    return [
        [None if day is None else dt.datetime.combine(day, just_before, zone) for day in group]
        for group in _DAYS
    ]


def _floats(*nans: float) -> list[list[Any]]:
    return [
        [3.0, nans[0], 3.0, 3.0],
        [nans[n % len(nans)] for n in range(4)],
        [0.0, -0.0, -0.0, 0.0],
        [-_INF, _INF, None, 1.5],
        _NULLS,
        _four(-0.0),
        [3.0, None, 3.0, 3.0],
    ]


def _in_structs(groups: list[list[Any]]) -> list[list[Any]]:
    return [
        [
            {"v": value, "n": row} if row or value is None else None
            for row, value in enumerate(group)
        ]
        for group in groups
    ]


_COLUMNS: dict[str, tuple[pa.DataType, list[list[Any]]]] = {
    "f64": (pa.float64(), _floats(_NAN, _NEGATIVE_NAN, _SIGNALLING_NAN)),
    "f32": (pa.float32(), _floats(_NAN)),
    "s": (
        pa.struct([("v", pa.float64()), ("n", pa.int32())]),
        _in_structs([*_floats(_NAN)[1:], [3.0, 3.0, _NAN, 3.0]]),
    ),
    "text": (
        pa.string(),
        [
            [f"{_LONG}a", f"{_LONG}b", f"{_LONG}a", _LONG],
            _four(""),
            ["a", "", None, "é"],
            ["\ud7ff", "\ue000", "\U0001f600", "z"],
            _NULLS,
            ["\x01", "\x7f", "\x80", "\x01\x01"],
            _four("\U0010ffff" * 20),
        ],
    ),
    "bytes": (
        pa.binary(),
        [
            _four(b"\xff" * 5000),
            _four(b""),
            [b"\x7f", b"\x80", None, b"\xff"],
            [b"\x00", b"\x00\x00", b"a", b"\x80"],
            _NULLS,
            _four(b"\x80"),
            [b"", b"", b"", None],
        ],
    ),
    "d9": (pa.decimal128(9, 2), _decimals("9999999.99")),
    "d18": (pa.decimal128(18, 4), _decimals("99999999999999.9999")),
    "d38": (pa.decimal128(38, 10), _decimals("9999999999999999999999999999.9999999999")),
    "day": (pa.date32(), _DAYS),
    "instant": (pa.timestamp("us", "UTC"), _moments(dt.UTC)),
    "wall": (pa.timestamp("us"), _moments(None)),
    "yes": (
        pa.bool_(),
        [
            *(_four(True), _four(False), [True, False, None, True], [True, None, True, True]),
            *(_NULLS, [False, None, False, False], _four(True)),
        ],
    ),
    "i8": (pa.int8(), _signed(8)),
    "i64": (pa.int64(), _signed(64)),
    "u8": (pa.uint8(), _unsigned(8)),
    "u64": (pa.uint64(), _unsigned(64)),
}
ODD = pa.record_batch(
    {
        "id": pa.array(range(GROUPS * GROUP_ROWS)),
        **{
            name: pa.array([value for group in groups for value in group], kind)
            for name, (kind, groups) in _COLUMNS.items()
        },
    }
)
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in")
NULL_TESTS = ("is null", "is not null")


def values_of(column: str) -> tuple[pa.DataType, list[Any]]:
    """Return a column's type and the values to compare it with.

    ``s.v`` is the column ``v`` of the struct ``s``. All values of float columns are returned; of
    other columns, the first values in three of the files.
    """
    name, _, inner = column.partition(".")
    array = pc.struct_field(ODD[name], inner) if inner else ODD[name]
    floats = pa.types.is_floating(array.type)
    every = array.to_pylist()[:: 1 if floats else GROUP_ROWS]
    found = list({repr(value): value for value in every if value is not None}.values())
    return array.type, found if floats else found[:3]


def conditions() -> list[tuple[str, pa.DataType, str, Any]]:
    """Return column, type, operator and value of each condition; null tests have no value."""
    found: list[tuple[str, pa.DataType, str, Any]] = []
    for column in (*_COLUMNS, "s.v", "s.n"):
        if column != "s":
            kind, values = values_of(column)
            found += [(column, kind, operator, None) for operator in NULL_TESTS]
            found += [(column, kind, op, value) for value in values for op in COMPARISONS]
    return found
