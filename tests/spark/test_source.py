"""format("ingester") without a jar: rows and row counts of a version, and invalid options."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark.versions import COUNTS_BARE_ROWS
from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.wire import Table, events, persist, put
from tests.spark.loading import load
from tests.spark.spread_rows import ROWS

pytestmark = pytest.mark.spark


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
    if COUNTS_BARE_ROWS:
        assert load(spark, url, table, columns="").count() == 100
    assert counted(load(spark, url, table, count="true")) == 100
    assert counted(load(spark, url, table, count="true", filter="time < '2026-11-21'")) == 0
    days = load(spark, url, table, columns="time_day")
    assert {row["count"] for row in days.groupBy("time_day").count().collect()} == {25}
    with pytest.raises(
        Exception, match=r"parquet does not exist: clean-up .* Load the table again"
    ):
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
        ({"count": "yes"}, "option count: 'yes' must be true or false"),
        ({"count": "true", "columns": "i"}, "option 'columns' cannot be combined with count"),
        ({"header": "true"}, "unknown option 'header'"),
        ({"version": "newest"}, "option version: 'newest' is not a whole number"),
        ({"version": "999"}, "version 999"),
        ({"as_of": "yesterday"}, "as_of 'yesterday'"),
        ({"as_of": "2026-01-01T00:00:00Z", "version": "1"}, "version and as_of"),
        ({"columns": "i, nothing"}, "no column 'nothing'"),
        ({"tasks": "0"}, "option tasks: '0'"),
        ({"namespace": "other"}, "'namespace' cannot be combined with a path"),
        ({"starting_version": "3"}, "unknown option 'starting_version'"),
    ],
)
def test_an_invalid_option_is_named(
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
    with pytest.raises(
        Exception, match="column 'i' is bigint in the table, but int in the given schema"
    ):
        reader.schema("i int").load(path).collect()
    with pytest.raises(Exception, match="no column 'nothing'"):
        reader.schema("nothing int").load(path).collect()
    with pytest.raises(Exception, match="table source/absent does not exist"):
        load(spark, url, ("source", "absent"))
    with pytest.raises(Exception, match="is not <url of the store>/<namespace>/<table>"):
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
    storage = {f"store_options.{name}": value for name, value in server.storage_options.items()}
    frame = load(spark, url, table, filter="time >= '2026-11-26'", **storage)
    before = len(server.requests())
    found = frame.select("i").collect()
    assert sorted(row.i for row in found) == list(range(5, 300, 6))
    read = {one["target"] for one in server.requests()[before:] if ".parquet" in one["target"]}
    assert len(read) == 1
