"""Batches of one row, and how many of them each writer sends."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema({"i": pa.int64(), "time": pa.timestamp("ns", "UTC")})
WRITERS = 8
EACH = 200


def row(number: int, *, fits: bool = True) -> pa.RecordBatch:
    """One row; a nanosecond past a whole microsecond does not fit a table of microseconds."""
    times = pa.array([1000 if fits else 1001], SCHEMA.field("time").type)
    return pa.record_batch([pa.array([number], pa.int64()), times], schema=SCHEMA)
