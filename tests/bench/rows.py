"""The rows that every party gets: a time, two tags, two numbers; or the demo's flights.

The same seed gives the same rows, here and in every client process, so that rows need not be
sent between processes. All times lie in one day: one partition of a default table.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("host", pa.string()),
        ("region", pa.string()),
        ("load", pa.float64()),
        ("temperature", pa.float64()),
    ]
)
HOSTS = pa.array([f"host-{number:02d}" for number in range(100)])
REGIONS = pa.array(["ams", "fra", "iad", "nrt", "sfo"])
SEED = 20261121
ROW_BYTES = 42
"""Approximate Arrow bytes of a row in a batch that is not tiny; results use measured numbers."""
_DAY_START_US = 1_795_219_200_000_000  # 2026-11-21 00:00 UTC
DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000


def make_batches(
    rows: int, count: int, seed: int, *, within_us: int = DAY_US
) -> list[pa.RecordBatch]:
    """``count`` different batches of ``rows`` rows, with times rising within and across them.

    All times lie in the first ``within_us`` microseconds of the day. Each batch has its own
    memory, as in a client that builds its batches.
    """
    random = np.random.default_rng([SEED, seed])
    step = max(1, within_us // (rows * count))
    batches = []
    for number in range(count):
        ticks = _DAY_START_US + (np.arange(rows) + number * rows) * step
        jitter = random.integers(0, step, rows) if step > 1 else 0
        batches.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(ticks + jitter, pa.int64()).view(SCHEMA.field("time").type),
                    HOSTS.take(pa.array(random.integers(0, len(HOSTS), rows))),
                    REGIONS.take(pa.array(random.integers(0, len(REGIONS), rows))),
                    pa.array(random.random(rows)),
                    pa.array(np.round(random.normal(20.0, 5.0, rows), 2)),
                ],
                schema=SCHEMA,
            )
        )
    return batches


def in_hour(batch: pa.RecordBatch, hour: int) -> pa.RecordBatch:
    """The same rows, some hours later."""
    # Integer addition keeps the time of day and needs no time zone lookup.
    times = pc.add(batch.column(0).view(pa.int64()), hour * HOUR_US).view(SCHEMA.field(0).type)
    return pa.RecordBatch.from_arrays([times, *batch.columns[1:]], schema=SCHEMA)


def batches_of(total_rows: int, rows: int, seed: int) -> list[pa.RecordBatch]:
    """As many batches of ``rows`` rows as ``total_rows`` needs."""
    return make_batches(rows, -(-total_rows // rows), seed)


@cache
def flights() -> pa.Table:
    """The demo's source: 336,776 flights of 16 carriers, 19 columns, in time order."""
    # Other systems have environments of their own, which lack what the demo needs.
    from ingester.demo.source import flights_file, read_flights

    return read_flights(flights_file())


def flight_batches(rows: int, count: int, seed: int) -> list[pa.RecordBatch]:
    """``count`` batches of ``rows`` successive flights, which begin elsewhere for each seed."""
    start = seed * rows * count % (flights().num_rows - rows * count)
    found: list[pa.RecordBatch] = (
        flights().slice(start, rows * count).to_batches(max_chunksize=rows)
    )
    return found
