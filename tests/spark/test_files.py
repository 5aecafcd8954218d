"""A version's files as a DataFrame: exactly those files, even if the folder has others."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark import read_table
from ingester.spark.read.native import can_read
from ingester.spark.read.scan import Reader
from persist.manifest import (
    Manifest,
    MomentNotKept,
    TableNotFound,
    TableState,
    VersionNotKept,
)
from persist.manifest.lineage import read_commit
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, events, numbers, persist, put

pytestmark = pytest.mark.spark

READERS: tuple[Reader, ...] = ("native", "arrow")


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    """Each way to read files; all return the same rows."""
    chosen: Reader = request.param
    return chosen


def state_of(url: str, table: Table, version: int | None = None) -> TableState:
    return Manifest(open_store(url), *table).load(version)


def numbers_in(frame: DataFrame) -> list[int]:
    return sorted(frame.select("i").toArrow()["i"].to_pylist())


def test_counts_and_sums_are_those_of_the_manifests_files(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    store: Path,
    table: Table,
    reader: Reader,
) -> None:
    for first in (0, 1000, 2000):
        put(client, table, events(first, 1000, days=5))
        persist(client, table)
    state = state_of(url, table)
    objects, root = open_store(url), Manifest(open_store(url), *table)
    read = [
        pq.read_table(objects.open(root.object_path(path)), columns=["i"]) for path in state.files
    ]
    expected = pa.concat_tables(read)["i"]

    frame = read_table(spark, url, *table, reader=reader)
    count, total, low, high = frame.agg(F.count("*"), F.sum("i"), F.min("i"), F.max("i")).collect()[
        0
    ]

    assert len(state.files) == 15
    assert (count, total) == (len(expected), pc.sum(expected).as_py()) == (3000, sum(range(3000)))
    assert (low, high) == (0, 2999)
    assert frame.count() == 3000


def test_a_version_shows_the_rows_that_it_had(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, reader: Reader
) -> None:
    put(client, table, numbers(0, 10))
    before = persist(client, table)
    put(client, table, numbers(10, 10))
    after = persist(client, table)

    assert numbers_in(read_table(spark, url, *table, before, reader=reader)) == list(range(10))
    assert numbers_in(read_table(spark, url, *table, after, reader=reader)) == list(range(20))
    assert numbers_in(read_table(spark, url, *table, reader=reader)) == list(range(20))
    with pytest.raises(VersionNotKept):
        read_table(spark, url, *table, after + 1, reader=reader)


def test_a_moment_shows_the_rows_of_then(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    before = persist(client, table)
    put(client, table, numbers(10, 10))
    persist(client, table)
    commit = read_commit(open_store(url), f"{table[0]}/{table[1]}/v1/_manifest/", before)
    assert commit is not None

    assert numbers_in(read_table(spark, url, *table, as_of=commit.at)) == list(range(10))
    far = datetime.now(UTC) + timedelta(days=1)
    assert numbers_in(read_table(spark, url, *table, as_of=far)) == list(range(20))
    with pytest.raises(MomentNotKept):
        read_table(spark, url, *table, as_of="2001-01-01T00:00:00Z")
    for wrong, said in (("yesterday", "not a time in ISO 8601"), ("2026-11-21", "no time zone")):
        with pytest.raises(ValueError, match=said):
            read_table(spark, url, *table, as_of=wrong)
    with pytest.raises(ValueError, match="only one of them"):
        read_table(spark, url, *table, before, as_of=far)


def test_a_frame_keeps_its_version_while_the_table_grows(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    persist(client, table)
    frame = read_table(spark, url, *table)
    put(client, table, numbers(10, 10))
    persist(client, table)
    assert numbers_in(frame) == list(range(10))


def test_stray_files_in_the_folder_are_not_read(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    store: Path,
    table: Table,
    reader: Reader,
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    (path,) = state_of(url, table).files
    own = store.joinpath(*table, "v1", path)
    shutil.copy(own, own.with_name("stray.parquet"))
    own.with_name("broken.parquet").write_bytes(b"not Parquet")
    elsewhere = own.parent.with_name("time_day=1999-01-01")
    elsewhere.mkdir()
    shutil.copy(own, elsewhere / "stray.parquet")

    assert numbers_in(read_table(spark, url, *table, reader=reader)) == list(range(10))


def test_a_missing_file_fails_even_where_the_session_ignores_such(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    store: Path,
    table: Table,
    reader: Reader,
) -> None:
    put(client, table, numbers(0, 10))
    persist(client, table)
    frame = read_table(spark, url, *table, reader=reader)
    (path,) = state_of(url, table).files
    store.joinpath(*table, "v1", path).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match=r"(?i)not.?(exist|found)"):
            frame.select("i").collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_files_older_than_a_column_have_nulls_in_it(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, reader: Reader
) -> None:
    put(client, table, numbers(0, 3))
    old = persist(client, table)
    put(client, table, numbers(3, 2, s=pa.array(["x", "y"])))
    persist(client, table)

    frame = read_table(spark, url, *table, reader=reader)
    assert [tuple(row) for row in frame.orderBy("i").collect()] == [
        (0, None),
        (1, None),
        (2, None),
        (3, "x"),
        (4, "y"),
    ]
    only_new = read_table(spark, url, *table, columns=["s"], reader=reader)
    assert sorted(row.s or "" for row in only_new.collect()) == ["", "", "", "x", "y"]
    assert read_table(spark, url, *table, old, reader=reader).columns == ["i"]


def test_a_table_without_files_has_its_columns_and_no_rows(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema)
    empty = read_table(spark, url, *table)
    put(client, table, events(0, 5))
    buffered = read_table(spark, url, *table)
    persist(client, table)
    full = read_table(spark, url, *table)

    assert empty.count() == buffered.count() == 0
    assert full.count() == 5
    assert empty.schema == buffered.schema == full.schema
    assert empty.schema["time_day"].dataType.simpleString() == "date"
    assert read_table(spark, url, *table, 1, endpoint=daemon.flight).count() == 5


def test_columns_come_as_asked_for(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, reader: Reader
) -> None:
    put(client, table, events(0, 5))
    persist(client, table)
    asked = ["time_day", "i"]
    frame = read_table(spark, url, *table, columns=asked, reader=reader)
    assert frame.columns == asked
    assert {str(row.time_day) for row in frame.collect()} == {"2026-11-21"}
    only_folder = read_table(spark, url, *table, columns=["time_day"], reader=reader)
    assert only_folder.count() == len(only_folder.collect()) == 5
    for wrong in (["i", "nope"], ["i", "i"], []):
        with pytest.raises(ValueError, match=r"column"):
            read_table(spark, url, *table, columns=wrong, reader=reader)


def test_a_store_may_lie_in_any_folder_and_columns_may_have_any_name(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    store: Path,
    table: Table,
    tmp_path: Path,
    reader: Reader,
) -> None:
    names = ["a.b", "a b", "größe", "`q`", "{x}", "%41"]
    batch = pa.record_batch([pa.array([n, n * 10]) for n in range(len(names))], names=names)
    create(client, table, batch.schema, partition_by=["identity(größe)", "identity(a.b)"])
    put(client, table, batch)
    persist(client, table)
    strange = tmp_path / "a [b] {c,d}*? %41 é = \\x"
    shutil.copytree(store.joinpath(*table), strange.joinpath(*table))

    frame = read_table(spark, f"file://{strange}", *table, reader=reader)
    assert frame.columns == [*names, "größe_key", "a.b_key"]
    assert sorted(tuple(row) for row in frame.collect()) == [
        (0, 1, 2, 3, 4, 5, 2, 0),
        (0, 10, 20, 30, 40, 50, 20, 0),
    ]


def test_the_native_reader_lists_its_files_without_a_job_each(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 80, days=40))
    persist(client, table)
    before = spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold")
    spark.sparkContext.setJobGroup("listing", "")
    try:
        read_table(spark, url, *table)
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("listing")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert jobs == []
    assert spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold") == before


def test_missing_tables_and_unknown_readers_are_refused(
    spark: SparkSession, client: fl.FlightClient, url: str
) -> None:
    with pytest.raises(TableNotFound, match="spark/none"):
        read_table(spark, url, "spark", "none")
    with pytest.raises(ValueError, match="reader"):
        read_table(spark, url, "spark", "none", reader="fast")  # type: ignore[arg-type]


def test_the_native_reader_needs_a_file_system_of_hadoops_for_the_url(
    spark: SparkSession, client: fl.FlightClient, url: str
) -> None:
    assert can_read(spark, url)
    assert can_read(spark, "hdfs://host/folder")
    assert not can_read(spark, "s3://bucket")
    assert not can_read(spark, "nonsense://bucket")
