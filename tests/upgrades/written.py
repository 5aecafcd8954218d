"""The tables and rows of the old data, and the rows that today's daemon adds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa

from tests.drivers.syncing import Change
from tests.drivers.wire import Table, events

PLAIN: Table = ("old", "plain")
"""No partitions, most types, a column added later; files by a daemon, by Spark, and compacted."""
EVENTS: Table = ("old", "events")
"""By day, later by day and host; written by the origin ``STATION``."""
KEYED: Table = ("old", "keyed")
"""With a primary key, and deletes of each kind."""
NANOS: Table = ("old", "nanos")
"""With nanoseconds, sorted, by bucket and by value; lists, structs and maps."""
COPY = "copy"
"""The namespace that is replicated into: tables ``a`` and ``b``."""
COPIES = ("north", "south")
"""The origins that replicate."""
STATION = "station-7"

CHECKED: Table = ("new", "checked")
"""Written by the origin ``FEED`` with its source's state."""
FEED = "feed-3"
PUSHED: Table = ("new", "pushed")
"""Replaced by pushes, and rolled back."""
VERSIONS = (1, 2, 3)
"""The table versions of ``PUSHED`` that are kept; the second is current."""
EXPIRED: Table = ("new", "expired")
"""A table with a forgotten origin."""
STORED: Table = ("new", "stored")
"""At level ``store``; written by the origin ``SHIP`` with its source's state."""
DISKLESS: Table = ("new", "diskless")
"""The same, by the daemon ``NO_DISK``."""
SHIP = "ship-4"
NO_DISK = "without-a-disk"
"""The id of a daemon with ``wal.disk = "off"``."""

PLAIN_SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "big": pa.uint64(),
        "ok": pa.bool_(),
        "v": pa.float64(),
        "note": pa.string(),
        "raw": pa.binary(),
        "price": pa.decimal128(12, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", "Europe/Berlin"),
    }
)
KEYED_SCHEMA = pa.schema({"k": pa.int64(), "v": pa.float64(), "s": pa.string()})
NANOS_SCHEMA = pa.schema(
    {
        "at": pa.timestamp("ns", "UTC"),
        "zip": pa.string(),
        "tags": pa.list_(pa.string()),
        "where": pa.struct({"x": pa.float32(), "y": pa.float32()}),
        "more": pa.map_(pa.string(), pa.int64()),
    }
)


def plain_batch(first: int, count: int, *, wider: bool = False) -> pa.RecordBatch:
    """The rows from ``first``; wider ones have an additional column, and lack some others."""
    numbers = range(first, first + count)
    if wider:
        return pa.record_batch(
            {
                "i": pa.array(numbers, pa.int8()),
                "note": pa.array([f"n{i}" for i in numbers]).dictionary_encode(),
                "later": pa.array([i * 1.5 for i in numbers]),
            }
        )
    rows = [
        {
            "i": i,
            "big": 2**63 + i,
            "ok": i % 3 == 0,
            "v": (float("nan"), -0.0, i / 3)[i % 3],
            "note": None if i % 4 == 0 else f"n{i} äöü",
            "raw": bytes([i % 256]) * (i % 3),
            "price": Decimal(i) / 4,
            "day": dt.date(1999, 12, 31) + dt.timedelta(i),
            "at": dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC) + dt.timedelta(minutes=i),
        }
        for i in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, PLAIN_SCHEMA)


def event_batch(sequence: int) -> pa.RecordBatch:
    """Ten rows of a sequence of ``STATION``, over three days."""
    return events(10 * sequence, 10, days=3)


def keyed_batch(keys: Iterable[int], text: str | None) -> pa.RecordBatch:
    """A row for each key."""
    rows = [{"k": k, "v": k / 2, "s": text} for k in keys]
    return pa.RecordBatch.from_pylist(rows, KEYED_SCHEMA)


def nanos_batch(first: int, count: int) -> pa.RecordBatch:
    """The rows from ``first``; one in five is null except for its time."""
    rows = [
        {
            "at": 1_795_219_200_000_000_000 + 977 * i,
            "zip": None if i % 5 == 0 else f"00{i % 3}",
            "tags": None if i % 5 == 0 else [f"t{n}" for n in range(i % 4)],
            "where": None if i % 5 == 0 else {"x": i / 2, "y": None},
            "more": None if i % 5 == 0 else [("a", i), ("b", None)],
        }
        for i in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, NANOS_SCHEMA)


def changes(transaction: int) -> list[Change]:
    """The changes of a transaction to table ``a``: two new keys, and a change to the last one."""
    first = 10 * transaction
    made: list[Change] = [
        (None, first, {"v": float(first), "s": f"s{first}"}),
        (None, first + 1, {"v": None, "s": None}),
    ]
    if transaction > 1:
        made.append((first - 10, first - 9 + 100, {"v": 0.5}))
    return made
