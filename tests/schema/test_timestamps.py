"""A table keeps microseconds or nanoseconds; no timestamp is rounded silently."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Table, create, persist, put, query


def test_nanoseconds_that_are_whole_microseconds_are_taken(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.timestamp("ns", "UTC")
    put(client, table, pa.record_batch({"t": pa.array([1000, None, -2000], kind)}))
    found = query(client, table)
    assert found.schema.field("t").type == pa.timestamp("us", "UTC")
    assert found["t"].cast(pa.int64()).to_pylist() == [1, None, -2]


def test_other_nanoseconds_are_refused_with_column_count_and_two_ways_out(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.timestamp("ns")
    with pytest.raises(pa.ArrowInvalid) as error:
        put(client, table, pa.record_batch({"t": pa.array([1000, 1001, 1999, None], kind)}))
    message = str(error.value)
    for part in ("'t'", "2 of 4", "timestamp('us')", 'timestamp_unit = "ns"'):
        assert part in message


def test_a_table_made_for_nanoseconds_keeps_them(client: fl.FlightClient, table: Table) -> None:
    kind = pa.timestamp("ns", "UTC")
    create(client, table, pa.schema({"t": kind}), timestamp_unit="ns")
    put(client, table, pa.record_batch({"t": pa.array([1001, None], kind)}))
    put(client, table, pa.record_batch({"t": pa.array([1], pa.timestamp("us", "UTC"))}))
    for _ in range(2):
        found = query(client, table)
        assert found.schema.field("t").type == kind
        assert sorted(found["t"].drop_null().cast(pa.int64()).to_pylist()) == [1000, 1001]
        persist(client, table)


def test_seconds_too_large_for_microseconds_are_refused(
    client: fl.FlightClient, table: Table
) -> None:
    with pytest.raises(pa.ArrowInvalid, match="'t'"):
        put(client, table, pa.record_batch({"t": pa.array([2**62], pa.timestamp("s"))}))


def test_times_far_from_now_come_back_as_sent(client: fl.FlightClient, table: Table) -> None:
    ticks = [0, -1, -62_135_596_800_000_000, 253_402_300_800_000_000, 2**62]
    times = pa.array(ticks, pa.timestamp("us", "UTC"))
    put(client, table, pa.record_batch({"time": times}))
    for _ in range(2):
        found = query(client, table)["time"].cast(pa.int64()).to_pylist()
        assert sorted(found) == sorted(ticks)
        persist(client, table)
