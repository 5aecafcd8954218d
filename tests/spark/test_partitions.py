"""A partition column has the same value in the folder, the manifest and a buffered row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ingester.spark import read_table
from ingester.spark.read.scan import Reader
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, events, persist, put

pytestmark = pytest.mark.spark

UTC = dt.UTC
AWKWARD = [
    *("%", "%41", "=", "a=b", "/", "a/b", "..", ".", " ", " x ", "\t", "\n", '"', "'", "\\", "`"),
    *("[x]", "{a,b}", "*", "?", "a:b", "#", "&", "~", "+", "|", "<>", "_x", "null", "NULL"),
    *("007", "1e3", "true", "2026-01-01", "é", "e\u0301", "日本", "😀", "Ã©", "ß/=%"),
    *("__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__", "", None),
]


@pytest.mark.parametrize("reader", ["native", "arrow"])
def test_any_text_comes_back_from_its_folder(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    reader: Reader,
) -> None:
    batch = pa.record_batch({"i": range(len(AWKWARD)), "k": pa.array(AWKWARD, pa.string())})
    create(client, table, batch.schema, partition_by=["identity(k)"])
    put(client, table, batch)
    buffered = read_table(spark, url, *table, endpoint=daemon.flight)
    assert read_table(spark, url, *table).count() == 0
    persist(client, table)
    persisted = read_table(spark, url, *table, reader=reader)

    # An empty string has no folder of its own and shares null's.
    expected = [(i, value, value or None) for i, value in enumerate(AWKWARD)]
    assert sorted(tuple(row) for row in persisted.collect()) == expected
    assert sorted(tuple(row) for row in buffered.collect()) == expected
    assert persisted.schema == buffered.schema
    assert isinstance(persisted.schema["k_key"].dataType, StringType)


@pytest.mark.parametrize("value", ["007", "é", "日本", "ß/=%", "__HIVE_DEFAULT_PARTITION__"])
def test_a_filter_on_text_reads_one_folder(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, value: str
) -> None:
    batch = pa.record_batch({"k": pa.array([*AWKWARD, value, "7"])})
    create(client, table, batch.schema, partition_by=["identity(k)"])
    put(client, table, batch)
    persist(client, table)
    found = read_table(spark, url, *table).where(F.col("k_key") == value)
    assert {row.k for row in found.collect()} == {value}
    assert files_read(spark, url, table, F.col("k_key") == value) == 1


def test_days_are_dates_and_prune(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 100, days=10))
    persist(client, table)
    day = F.lit(dt.date(2026, 11, 25))
    frame = read_table(spark, url, *table)
    assert frame.where(F.col("time_day") == day).count() == 10
    assert files_read(spark, url, table, F.col("time_day") == day) == 1
    assert files_read(spark, url, table, F.col("time_day") >= day) == 6
    assert files_read(spark, url, table, F.col("time_day").isNull()) == 0


TIMES = [
    dt.datetime(2026, 11, 21, 23, 59, 59, 999_999, UTC),
    dt.datetime(2026, 3, 8, 7, 30, tzinfo=UTC),  # New York, the session's zone, skips 2:30 here
    dt.datetime(1969, 12, 31, 23, 0, 0, 1, UTC),
    dt.datetime(1500, 1, 1, tzinfo=UTC),
    None,
]
SOURCES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "time": (pa.timestamp("us", "UTC"), TIMES),
    "wall": (pa.timestamp("us"), [t and t.replace(tzinfo=None) for t in TIMES]),
    "day": (pa.date32(), [t and t.date() for t in TIMES]),
    "small": (pa.int8(), [-128, 127, 0, 1, None]),
    "big": (pa.uint64(), [2**64 - 1, 0, 1, 2, None]),
    "money": (pa.decimal128(10, 2), [Decimal(x) for x in ("0.00", "-1.50", "10.00", "0.01", "7")]),
    "flag": (pa.bool_(), [True, False, True, False, None]),
}
EXPECTED: dict[str, list[Any]] = {
    "day(time)": [t and t.date() for t in TIMES],
    "hour(time)": [t and t.strftime("%4Y-%m-%d-%H") for t in TIMES],
    "month(day)": [t and t.strftime("%4Y-%m") for t in TIMES],
    "year(wall)": [t and t.year for t in TIMES],
    **{f"identity({name})": values for name, (_, values) in SOURCES.items()},
}


@pytest.mark.parametrize("text", EXPECTED)
def test_each_transform_has_its_type_and_value_from_every_source(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    text: str,
) -> None:
    arrays = [pa.array(values, kind) for kind, values in SOURCES.values()]
    batch = pa.record_batch([pa.array(range(5)), *arrays], names=["i", *SOURCES])
    create(client, table, batch.schema, partition_by=[text])
    put(client, table, batch)
    sources = [read_table(spark, url, *table, endpoint=daemon.flight)]
    persist(client, table)
    sources += [read_table(spark, url, *table, reader=reader) for reader in ("native", "arrow")]

    name = sources[0].columns[-1]
    for frame in sources:
        # Values are compared as Arrow, because Python datetimes pass through the session's time
        # zone.
        assert frame.schema == sources[0].schema
        got = frame.orderBy("i").toArrow()
        assert got[name].to_pylist() == EXPECTED[text]


def test_buckets_are_the_same_buffered_and_persisted(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    hosts = pa.array([*(f"host-{n}" for n in range(50)), None])
    create(client, table, pa.schema({"host": pa.string()}), partition_by=["bucket(4, host)"])
    put(client, table, pa.record_batch({"host": hosts}))
    buffered = read_table(spark, url, *table, endpoint=daemon.flight).collect()
    persist(client, table)
    persisted = read_table(spark, url, *table).collect()
    assert {tuple(row) for row in buffered} == {tuple(row) for row in persisted}
    assert {row.host_bucket for row in persisted} == {0, 1, 2, 3, None}


def files_read(spark: SparkSession, url: str, table: Table, condition: Column) -> int:
    """Return the number of files that Spark opens for the rows that meet a condition."""
    frame = read_table(spark, url, *table).where(condition)
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    scans = plan.collectLeaves()
    total = 0
    for index in range(scans.size()):
        metrics = scans.apply(index).metrics()
        total += metrics.apply("numFiles").value() if metrics.contains("numFiles") else 0
    return int(total)
