"""Buffered rows beyond a version: of several daemons, of older versions, and of keyed tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.spark import RowsMissing, TailUnavailable, read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, delete, describe, numbers, persist, put

pytestmark = pytest.mark.spark


def test_several_daemons_of_one_table_are_added_up(
    spark: SparkSession, daemon: Daemon, url: str, table: Table, tmp_path: Path
) -> None:
    with Daemon.start(tmp_path / "second", id="second", store=url) as second:
        with fl.connect(daemon.flight) as one, fl.connect(second.flight) as two:
            put(one, table, numbers(0, 10))
            persist(one, table)
            put(two, table, numbers(10, 10))
            put(one, table, numbers(20, 10))
        endpoints = [daemon.flight, second.flight]
        by_name = daemon.flight.replace("127.0.0.1", "localhost")
        twice = read_table(spark, url, *table, endpoint=[*endpoints, by_name])
        both = read_table(spark, url, *table, endpoint=endpoints)
        first = read_table(spark, url, *table, endpoint=endpoints[:1])
        nobody = "grpc://127.0.0.1:1"
        away = ",".join([*endpoints, nobody])
        with pytest.raises(TailUnavailable, match=nobody):
            read_table(spark, url, *table, endpoint=away)
        with pytest.warns(RowsMissing, match=f"missing: {nobody}: cannot connect") as warned:
            without = read_table(spark, url, *table, endpoint=away, allow_missing_endpoints=True)
        (warning,) = (each.message for each in warned if isinstance(each.message, RowsMissing))
        assert warning.endpoints == [nobody]
    assert sorted(row.i for row in both.collect()) == list(range(30))
    assert (without.count(), twice.count()) == (30, 30)
    assert sorted(row.i for row in first.collect()) == [*range(10), *range(20, 30)]


def test_an_older_version_and_its_tail_are_all_rows(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    old = persist(client, table)
    put(client, table, numbers(10, 10, s=pa.array(["new"] * 10)))
    persist(client, table)
    put(client, table, numbers(20, 10))

    frame = read_table(spark, url, *table, old, endpoint=daemon.flight)
    assert sorted(row.i for row in frame.collect()) == list(range(30))
    # The version lacks the column that later rows have.
    assert frame.where("s = 'new'").count() == 10
    named = read_table(spark, url, *table, old, endpoint=daemon.flight, columns=["s"])
    assert Counter(row.s for row in named.collect()) == {"new": 10, None: 20}


def test_keyed_tables_show_the_last_row_of_each_key(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema({"a": pa.string(), "b.c": pa.int64(), "v": pa.int64()})
    create(client, table, schema, primary_key=["a", "b.c"], partition_by=["identity(a)"])

    def write(value: int, *keys: tuple[str, int]) -> None:
        rows = [(a, b, value) for a, b in keys]
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        put(client, table, pa.record_batch(arrays, names=schema.names))

    write(1, ("x", 1), ("x", 2), ("y", 1), ("", 1))
    old = persist(client, table)
    write(2, ("x", 2), ("z", 1))
    persist(client, table)
    write(3, ("y", 1), ("z", 1), ("", 1))
    write(4, ("y", 1))

    expected = [("", 1, 3), ("x", 1, 1), ("x", 2, 2), ("y", 1, 4), ("z", 1, 3)]
    for version in (None, old):
        frame = read_table(spark, url, *table, version, endpoint=daemon.flight)
        assert frame.columns == [*schema.names, "a_key"]
        rows = sorted(tuple(row) for row in frame.select("a", "`b.c`", "v").collect())
        assert rows == expected
        assert frame.where(F.col("a_key") == "y").count() == 1
    values = read_table(spark, url, *table, endpoint=daemon.flight, columns=["v"])
    assert sorted(row.v for row in values.collect()) == [1, 2, 3, 3, 4]


def test_deleted_keys_are_in_no_version_and_no_tail(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema({"id": pa.int64(), "v": pa.int64()})
    create(client, table, schema, primary_key=["id"], partition_by=["bucket(2, id)"])

    def keys(*ids: int) -> pa.RecordBatch:
        return pa.record_batch({"id": pa.array(ids, pa.int64())})

    put(client, table, pa.record_batch([range(20), [1] * 20], schema=schema))
    versions = [persist(client, table)]
    delete(client, table, keys(*range(0, 20, 2)))
    versions.append(persist(client, table))
    delete(client, table, keys(1, 3, 99))
    put(client, table, pa.record_batch([[3, 4], [2, 2]], schema=schema))
    delete(client, table, keys(4))

    left = dict.fromkeys(range(5, 20, 2), 1) | {3: 2}
    for version in (None, *versions):
        frame = read_table(spark, url, *table, version, endpoint=daemon.flight)
        assert {row.id: row.v for row in frame.collect()} == left
    versions.append(persist(client, table))
    files = read_table(spark, url, *table)
    assert {row.id: row.v for row in files.collect()} == left
    for version in versions:
        frame = read_table(spark, url, *table, version, endpoint=daemon.flight)
        assert {row.id: row.v for row in frame.collect()} == left


def test_an_unreachable_daemon_is_named(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    away = r"^grpc://127\.0\.0\.1:1: cannot connect to 127\.0\.0\.1:1: Connection refused$"
    with pytest.raises(TailUnavailable, match=away) as caught:
        read_table(spark, url, *table, endpoint="grpc://127.0.0.1:1")
    assert caught.value.code is None
    with pytest.raises(ValueError, match=r"^endpoint .http://127\.0\.0\.1:1.: .*Flight port"):
        read_table(spark, url, *table, endpoint="http://127.0.0.1:1")


def test_buffered_rows_are_those_of_the_call(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    frame = read_table(spark, url, *table, endpoint=daemon.flight)
    put(client, table, numbers(10, 10))
    persist(client, table)
    assert frame.count() == 10
    assert describe(client, table)["buffered"]["rows"] == 0
