"""format("ingester"): the rows of ``read_table``, whatever is pushed down, without any jar."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark import read_table
from persist.manifest import Manifest
from persist.store import open_store
from tests.daemon import Daemon
from tests.integration.wire import Table, create, events, persist, put
from tests.s3_server import S3Server
from tests.spark.loading import load

pytestmark = pytest.mark.spark

NAN = float("nan")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
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
CONDITIONS = [
    *("i <> 4", "i in (1, 7, null)", "i not in (1, 7)", "i is null", "not i < 4", "i <=> null"),
    *("i > 2 and i < 6", "i = 1 or i = 7", "i = 9999999999", "u = 18446744073709551615"),
    *("f = 'NaN'", "f >= 5", "f < 'NaN'", "f = 0", "f <> 5", "g <= 'NaN'", "not g = 2"),
    *("s like 'a%'", "s like '\ud7ff%'", "s > 'b'", "d in (0.25, 1.75)", "d = 0.255"),
    *("b <=> true", "x > X'62'", "day > date'2026-01-06'"),
    *("wall < timestamp_ntz'2026-01-01 02:00:00'", "time >= timestamp'2026-11-21 12:00:00Z'"),
    *("time_day <> date'2026-11-21'", "s_key is null", "time_day = date'2026-11-21' and i > 3"),
    *("n = timestamp_ntz'1970-01-01 00:00:00'", "n < timestamp_ntz'1970-01-01 00:00:00'"),
    *("n > timestamp_ntz'1970-01-01 00:00:00'", "n <> timestamp_ntz'1970-01-01 00:00:00'"),
]


@pytest.fixture(scope="module")
def spread(daemon: Daemon) -> Table:
    """Every row in a file of its own, all kinds of values that compare oddly."""
    table = ("source", "spread")
    batch = pa.record_batch(SPREAD)
    with fl.connect(daemon.flight) as client:
        create(
            client,
            table,
            batch.schema,
            timestamp_unit="ns",
            partition_by=["day(time)", "identity(s)"],
        )
        for start in range(ROWS):
            put(client, table, batch.slice(start, 1))
        persist(client, table)
    return table


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_any_condition_gives_the_rows_that_spark_finds_in_the_same_files(
    spark: SparkSession, url: str, spread: Table
) -> None:
    files = read_table(spark, url, *spread)
    # Rows that Spark just holds: its own readers and caches have ideas of NaN.
    plain = spark.createDataFrame(files.collect(), files.schema)
    assert rows(load(spark, url, spread)) == rows(plain)
    for condition in CONDITIONS:
        frame = load(spark, url, spread, pushdown=True)
        assert rows(frame.where(condition)) == rows(plain.where(condition)), condition
    spark.conf.set(PUSHDOWN, "false")
    try:
        frame = spark.read.format("ingester").load(f"{url}/{spread[0]}/{spread[1]}")
        assert rows(frame.where("i = 4")) == rows(plain.where("i = 4"))
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_one_frame_serves_many_queries(spark: SparkSession, url: str, spread: Table) -> None:
    """Spark keeps what one query pushed for the next one, unless nothing is."""
    frame = load(spark, url, spread)
    low, high = frame.where("time_day = date'2026-11-20'"), frame.where("i >= 4")
    assert (low.count(), frame.count(), high.count()) == (3, ROWS, 4)
    assert low.union(high).count() == 7


SAID = {
    "i = 4": 1,
    "i != 4": 6,
    "i in (1, 7, 99)": 2,
    "i not in (1, 7)": 5,
    "i is null or i > 6": 2,
    "not (i >= 2 and i is not null)": 3,
    "u = 18446744073709551615": 1,
    "u between 4 and 6": 3,
    "u not in (4.5)": 7,
    "u in (4.5, 5)": 1,
    "f > 2": 3,
    "f >= 2 and f < 3": 1,
    "f != 5": 6,
    "f = 0": 1,
    "g <= 2": 3,
    "g not in (2, 3)": 5,
    "s >= 'b'": 4,
    "s = ''": 1,
    "d = '0.25'": 1,
    "d > '1.3'": 2,
    "b = true": 3,
    "b != true": 3,
    "day > '2026-01-06'": 2,
    "wall < '2026-01-01T02:00:00'": 2,
    "time >= '2026-11-21T12:00:00Z'": 2,
    "time < '2026-11-21'": 3,
    "time_day = '2026-11-21' and i > 3": 2,
    "s_key is null": 2,
    "s_key = 'a'": 1,
    "n < '1970-01-01T00:00:00'": 1,
    "n = '1970-01-01T00:00:00.000000001'": 1,
    "n > '1970-01-01T00:00:00.000000999'": 3,
}


@pytest.mark.parametrize("way", ["native", "arrow", "source"])
def test_a_filter_that_is_said_keeps_the_same_rows_in_every_reader(
    spark: SparkSession, url: str, spread: Table, way: Literal["native", "arrow", "source"]
) -> None:
    for text, expected in SAID.items():
        if way == "source":
            frame = load(spark, url, spread, filter=text, columns="time")
        else:
            frame = read_table(spark, url, *spread, reader=way, filter=text, columns=["time"])
        assert frame.count() == expected, text
        assert frame.columns == ["time"]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("time >= '2026-11-22'", 2),
        ("time between '2026-11-20' and '2026-11-20T23:59:59'", 3),
        ("i = 4 or s = 'a'", 2),
        ("n >= '1970-01-01T00:00:00.000001'", 3),
    ],
)
def test_a_filter_that_is_said_opens_only_files_that_can_match(
    spark: SparkSession, url: str, spread: Table, text: str, files: int
) -> None:
    native = read_table(spark, url, *spread, reader="native", filter=text)
    assert len(native.inputFiles()) == files
    source = load(spark, url, spread, filter=text, tasks=ROWS)
    assert source.rdd.getNumPartitions() == files


def test_a_filter_that_is_said_looks_at_buffered_rows_too(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    batch = pa.record_batch({"k": [1, 2, 3], "v": [10, 20, 30], "w": [0, 0, 0]})
    create(client, table, batch.schema, primary_key=["k"])
    put(client, table, batch)
    persist(client, table)
    # Of these, 1 matches no longer, 2 does now, and 4 is new.
    put(client, table, pa.record_batch({"k": [1, 2, 4], "v": [99, 11, 12], "w": [1, 1, 1]}))
    frame = read_table(spark, url, *table, endpoint=daemon.flight, filter="v < 15", columns=["k"])
    assert sorted(row.k for row in frame.collect()) == [2, 4]


@pytest.mark.parametrize(
    ("text", "told"),
    [("v >", "filter, at"), ("nothing = 1", "unknown column 'nothing'"), ("i = 'x'", "'x'")],
)
def test_a_filter_that_is_none_is_refused(
    spark: SparkSession, url: str, spread: Table, text: str, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        read_table(spark, url, *spread, filter=text)
    with pytest.raises(Exception, match=told):
        load(spark, url, spread, filter=text)


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("time >= timestamp'2026-11-22 00:00:00Z'", 2),
        ("time_day = date'2026-11-20'", 3),
        ("s like 'a%'", 2),
        ("s_key = 'a'", 1),
        ("i = 4", 1),
        ("i = 4 and time_day = date'2026-11-20'", 0),
        ("n >= timestamp_ntz'1970-01-01 00:00:00.000001'", 3),
    ],
)
def test_only_files_that_can_match_are_opened(
    spark: SparkSession, url: str, spread: Table, condition: str, files: int
) -> None:
    every = load(spark, url, spread, tasks=ROWS, pushdown=True)
    assert every.rdd.getNumPartitions() == ROWS
    # Nothing to read is one task that Spark asks for anyway.
    assert every.where(condition).rdd.getNumPartitions() == max(files, 1)


def test_what_is_loaded_stays_as_it_was(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    frame = load(spark, url, table)
    named = f"url '{url}', namespace '{table[0]}', table '{table[1]}'"
    spark.sql(f"CREATE OR REPLACE TEMP VIEW seen USING ingester OPTIONS ({named})")
    first = Manifest(open_store(url), *table).head()
    put(client, table, events(10, 5))
    persist(client, table)
    assert (frame.count(), spark.table("seen").count()) == (10, 10)
    assert load(spark, url, table).count() == 15
    assert load(spark, url, table, version=first).count() == 10
    moment = dt.datetime.now(dt.UTC).isoformat()
    assert load(spark, url, table, as_of=moment).count() == 15
    (row,) = spark.sql("SELECT max(i), min(time_day) FROM seen").collect()
    assert tuple(row) == (9, dt.date(2026, 11, 21))


def test_rows_are_counted_without_the_files(
    spark: SparkSession, client: fl.FlightClient, store: Path, url: str, table: Table
) -> None:
    put(client, table, events(0, 100, days=4))
    persist(client, table)
    for file in (store / table[0] / table[1]).rglob("*.parquet"):
        file.unlink()
    assert load(spark, url, table, columns="").count() == 100
    assert counted(load(spark, url, table, count="true")) == 100
    assert counted(load(spark, url, table, count="true", filter="time < '2026-11-21'")) == 0
    days = load(spark, url, table, columns="time_day")
    assert {row["count"] for row in days.groupBy("time_day").count().collect()} == {25}
    with pytest.raises(Exception, match=r"NotFound|does not exist|no such"):
        load(spark, url, table, columns="i").collect()


@pytest.mark.parametrize("filter", ["i > 2", "time >= '2026-11-21'", "s is null", "i is null"])
def test_what_a_filter_leaves_is_counted(
    spark: SparkSession, url: str, spread: Table, filter: str
) -> None:
    wanted = load(spark, url, spread, filter=filter).count()
    assert 0 < wanted < ROWS or filter == "s is null"
    assert counted(load(spark, url, spread, filter=filter, count="true")) == wanted


def test_rows_are_counted_in_sql_and_of_a_version(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    first = Manifest(open_store(url), *table).head()
    put(client, table, events(10, 5))
    persist(client, table)
    path = f"path '{url}/{table[0]}/{table[1]}'"
    spark.sql(f"CREATE OR REPLACE TEMP VIEW numbered USING ingester OPTIONS ({path}, count 'true')")
    assert spark.sql("SELECT sum(count) FROM numbered").first() == (15,)
    assert counted(load(spark, url, table, count="true", version=first)) == 10
    assert load(spark, url, table, count="false").count() == 15


def counted(frame: DataFrame) -> int:
    assert frame.columns == ["count"]
    return sum(row["count"] for row in frame.collect())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"count": "yes"}, "option count: 'yes' is neither true nor false"),
        ({"count": "true", "columns": "i"}, "option 'columns' beside count"),
        ({"header": "true"}, "option 'header' is none of"),
        ({"version": "newest"}, "option version: 'newest' is no whole number"),
        ({"version": "999"}, "version 999"),
        ({"as_of": "yesterday"}, "as_of 'yesterday'"),
        ({"as_of": "2026-01-01T00:00:00Z", "version": "1"}, "version and as_of"),
        ({"columns": "i, nothing"}, "no column 'nothing'"),
        ({"tasks": "0"}, "option tasks: '0'"),
        ({"namespace": "other"}, "'namespace' beside a path"),
        ({"starting_version": "3"}, "option 'starting_version' is none of"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_by_its_name(
    spark: SparkSession, url: str, spread: Table, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        load(spark, url, spread, **options).collect()


def test_a_schema_that_is_not_the_tables_is_refused(
    spark: SparkSession, url: str, spread: Table
) -> None:
    path = f"{url}/{spread[0]}/{spread[1]}"
    reader = spark.read.format("ingester").schema("s string, i bigint")
    assert reader.load(path).first() is not None
    with pytest.raises(Exception, match="column 'i' is bigint in the table, and int in the schema"):
        reader.schema("i int").load(path).collect()
    with pytest.raises(Exception, match="no column 'nothing'"):
        reader.schema("nothing int").load(path).collect()
    with pytest.raises(Exception, match="table source/absent does not exist"):
        load(spark, url, ("source", "absent"))
    with pytest.raises(Exception, match="is not <store's url>/<namespace>/<table>"):
        spark.read.format("ingester").load("spread")


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


@pytest.mark.s3
def test_a_bucket_is_read_without_any_jar(
    spark: SparkSession, server: S3Server, table: Table, tmp_path: Path
) -> None:
    url = "s3://lake/some prefix"
    with (
        Daemon.start(tmp_path / "data", environment=server.environment, store=url) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, events(0, 300, days=6))
        persist(client, table)
    storage = {f"storage.{name}": value for name, value in server.storage_options.items()}
    frame = load(spark, url, table, filter="time >= '2026-11-26'", **storage)
    before = len(server.requests())
    found = frame.select("i").collect()
    assert sorted(row.i for row in found) == list(range(5, 300, 6))
    read = {one["target"] for one in server.requests()[before:] if ".parquet" in one["target"]}
    assert len(read) == 1
