"""Files that the worker cannot read itself are read by the daemon, and only those that can match.

DuckDB would lose nanoseconds of a time with a zone, so a table with such a column is read by the
daemon from a local store too.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.sql import ask, rows
from tests.drivers.wire import Table, create, delete, persist, put

NS = pa.timestamp("ns", "UTC")


def filled(client: fl.FlightClient, table: Table, **definition: object) -> None:
    """Make a table with two partitions, each with a file of three rows and a buffered one."""
    fields = [("part", pa.string()), ("id", pa.int64()), ("seen", NS)]
    schema = pa.schema([pa.field(*each, nullable=each[0] == "seen") for each in fields])
    create(
        client, table, schema, timestamp_unit="ns", partition_by=["identity(part)"], **definition
    )
    for first, flush in ((0, True), (3, False)):
        ids = range(first, first + (3 if flush else 1))
        for part in "ab":
            columns = [[part] * len(ids), list(ids), pa.array(list(ids), pa.int64()).cast(NS)]
            put(client, table, pa.record_batch(columns, schema=schema))
        if flush:
            persist(client, table)


def test_a_filter_reads_only_the_files_that_can_match(
    client: fl.FlightClient, shared: Daemon, table: Table
) -> None:
    filled(client, table)
    name = ".".join(table)
    (other,) = (shared.data_dir / "store" / Path(*table)).rglob("part_key=b/*.parquet")
    away = other.rename(other.with_suffix(".away"))
    for where in ("part = 'a'", "part IN ('a', 'x')", "part < 'b' AND id >= 0"):
        assert rows(client, f"SELECT count(*), max(id) FROM {name} WHERE {where}") == [(4, 3)]
    assert rows(client, f"SELECT count(*) FROM {name} WHERE part = 'b' AND id > 2") == [(1,)]
    with pytest.raises(fl.FlightError, match=r"cannot be read|does not exist"):
        ask(client, f"SELECT count(*) FROM {name} WHERE part = 'b' AND id > 1")
    away.rename(other)
    assert rows(client, f"SELECT count(*), count(DISTINCT seen) FROM {name}") == [(8, 4)]


def test_keys_that_changed_are_taken_out_of_streamed_files(
    client: fl.FlightClient, table: Table
) -> None:
    filled(client, table, primary_key=["part", "id"])
    delete(client, table, pa.record_batch({"part": ["a", "b"], "id": [1, 3]}))
    name = ".".join(table)
    kept = [("a", 0), ("a", 2), ("a", 3), ("b", 0), ("b", 1), ("b", 2)]
    for _ in range(2):
        assert rows(client, f"SELECT part, id FROM {name} ORDER BY part, id") == kept
        assert rows(client, f"SELECT part FROM {name} WHERE id = 1") == [("b",)]
        persist(client, table)
