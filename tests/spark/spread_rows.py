"""Rows in groups of four, one file per group, whose bounds are easy to misread."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa

NAN = float("nan")
ROWS = 8
SPREAD = {
    "time": pa.array(
        [dt.datetime(2026, 11, 20 + i % 3, i, tzinfo=dt.UTC) for i in range(ROWS)],
        pa.timestamp("us", "UTC"),
    ),
    "i": pa.array([0, 1, 2, None, 4, 5, 6, 7], pa.int64()),
    "u": pa.array([0, 2**64 - 1, 2, None, 4, 5, 6, 7], pa.uint64()),
    "f": pa.array([-0.0, NAN, 2.5, None, float("inf"), 5.0, -6.0, NAN]),
    "g": pa.array([0.0, 1.0, 2.0, 3.0, None, 5.0, 6.0, 7.0], pa.float32()),
    "s": pa.array(["", "a", "ab", None, "b", "é", "\ud7ffx", "\U0001f600"]),
    "d": pa.array([Decimal(n) / 4 if n != 3 else None for n in range(ROWS)], pa.decimal128(9, 2)),
    "b": pa.array([True, False, None, True, False, None, True, False]),
    "x": pa.array([b"", b"\x00", b"a", None, b"b", b"c", b"d", b"\xff"]),
    "day": pa.array([dt.date(2026, 1, 1 + n) if n != 3 else None for n in range(ROWS)]),
    "wall": pa.array([dt.datetime(2026, 1, 1, n) if n != 3 else None for n in range(ROWS)]),
    "n": pa.array([-1, 0, 1, None, 999, 1000, 1001, 10**15], pa.int64()).cast(pa.timestamp("ns")),
}
