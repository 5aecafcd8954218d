"""Rows of the fixture ``mixed``: columns of most types; every fourth row has only ``i``."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

DAY = dt.date(2026, 11, 21)
WHEN = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "small": pa.int8(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "f32": pa.float32(),
        "b": pa.bool_(),
        "s": pa.string(),
        "y": pa.binary(),
        "d": pa.date32(),
        "dec": pa.decimal128(10, 2),
        "t": pa.timestamp("us", "UTC"),
        "naive": pa.timestamp("us"),
        "l": pa.list_(pa.int32()),
    }
)


def _row(i: int) -> dict[str, Any]:
    if i % 4 == 3:
        return {"i": i}
    return {
        "i": i,
        "small": i % 10 - 5,
        "u": 2**63 + i,
        "f": i / 4,
        "f32": i / 4,
        "b": i % 2 == 0,
        "s": f"s{i % 5}",
        "y": bytes([i]),
        "d": DAY + dt.timedelta(days=i),
        "dec": Decimal(i) / 4,
        "t": WHEN + dt.timedelta(hours=i),
        "naive": (WHEN + dt.timedelta(hours=i)).replace(tzinfo=None),
        "l": [i, None],
    }


ROWS = [_row(i) for i in range(40)]
