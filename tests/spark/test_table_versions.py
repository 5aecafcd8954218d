"""Generations of a table: reads use the current one by default, others by number."""

from __future__ import annotations

from typing import Any

import pyarrow.flight as fl
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from ingester.spark import read_table, register
from ingester.spark.errors import RequestRefused, StreamUnsuitable, WriteRefused
from ingester.spark.options import SourceOptions
from ingester.spark.source.source import IngesterSource
from ingester.spark.versions import ReadAllAvailable
from persist.manifest import Manifest, TableVersionNotKept, give_up_version
from persist.store import open_store
from persist.switching import switch_version
from persist.table import TableKey
from tests.drivers.pushing import push_some
from tests.drivers.wire import numbers, persist, put

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def write(client: fl.FlightClient, table: TableKey, first: int) -> None:
    """Write ten rows to a file of their own."""
    put(client, table, numbers(first, 10))
    persist(client, table)


def source(url: str, table: TableKey, **options: Any) -> dict[str, str]:
    named = {"url": url, "namespace": table[0], "table": table[1]}
    return named | {name: str(value) for name, value in options.items()}


@pytest.fixture
def switched(client: fl.FlightClient, url: str, table: TableKey) -> TableKey:
    """A table of 20 rows whose current version 2 has the first 10 of them."""
    write(client, table, 0)
    write(client, table, 10)
    store = open_store(url)
    first = min(Manifest(store, *table).load().files.values(), key=lambda add: add.at)
    assert push_some(store, table, wanted=lambda add: add.path == first.path) == 2
    switch_version(store, *table, 2)
    return table


def test_the_version_that_counts_is_read_and_others_by_their_number(
    spark: SparkSession, url: str, switched: TableKey
) -> None:
    def read(**which: Any) -> tuple[int, int]:
        found = read_table(spark, url, *switched, **which).count()
        options = source(url, switched, **which)
        return found, spark.read.format("ingester").options(**options).load().count()

    assert read() == (10, 10)
    assert read(table_version=2) == (10, 10)
    assert read(table_version=1) == (20, 20)
    early = read_table(spark, url, *switched, table_version=1, version=2).count()
    assert early < 20, "a manifest version of that one"


def test_a_version_that_is_not_kept_is_refused_by_its_number(
    spark: SparkSession, url: str, switched: TableKey
) -> None:
    told = "has no table version 3; existing versions: 1, 2"
    with pytest.raises(TableVersionNotKept, match=told):
        read_table(spark, url, *switched, table_version=3)
    with pytest.raises(AnalysisException, match=told):
        spark.read.format("ingester").options(**source(url, switched, table_version=3)).load()
    with pytest.raises(RequestRefused, match="table_version"):
        read_table(spark, url, *switched, table_version=2, endpoint="grpc://127.0.0.1:1")
    with pytest.raises(RequestRefused, match="option table_version: '0'"):
        SourceOptions.read(source(url, switched, table_version=0)).manifest()
    give_up_version(open_store(url), *switched, 1)
    with pytest.raises(TableVersionNotKept, match="has no table version 1; existing versions: 2"):
        read_table(spark, url, *switched, table_version=1)


def test_a_frame_stays_with_the_version_that_it_began_with(
    spark: SparkSession, client: fl.FlightClient, url: str, table: TableKey
) -> None:
    write(client, table, 0)
    frame = read_table(spark, url, *table)
    of_source = spark.read.format("ingester").options(**source(url, table)).load()
    store = open_store(url)
    switch_version(store, *table, push_some(store, table, wanted=lambda add: False))
    assert (frame.count(), of_source.count()) == (10, 10)
    assert read_table(spark, url, *table).count() == 0


def test_a_stream_says_that_its_table_was_switched(
    spark: SparkSession, client: fl.FlightClient, url: str, table: TableKey
) -> None:
    write(client, table, 0)
    made = IngesterSource(source(url, table))
    stream = made.streamReader(made.schema())
    begin = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    store = open_store(url)
    write(client, table, 10)
    switch_version(store, *table, push_some(store, table))
    end = stream.latestOffset(begin, ReadAllAvailable())
    assert len(stream.partitions(begin, end)) == 1, "first what is left"
    for _ in range(2):
        with pytest.raises(StreamUnsuitable, match="was switched from generation 1 to 2"):
            stream.latestOffset(end, ReadAllAvailable())
    anew = IngesterSource(source(url, table)).streamReader(made.schema())
    with pytest.raises(StreamUnsuitable, match="the checkpoint belongs to generation 1"):
        anew.latestOffset(end, ReadAllAvailable())
    assert anew.initialOffset()["table_version"] == 2


def test_a_write_that_a_switch_overtakes_lists_no_file_of_the_old_version(
    spark: SparkSession, client: fl.FlightClient, url: str, table: TableKey
) -> None:
    write(client, table, 0)
    store = open_store(url)
    frame = spark.createDataFrame([(100,)], read_table(spark, url, *table).select("i").schema)
    writer = IngesterSource(source(url, table)).writer(frame.schema, overwrite=False)
    batches = frame.toArrow().to_batches()
    message = writer.write(iter(batches))
    switch_version(store, *table, push_some(store, table))
    with pytest.raises(WriteRefused, match="switched to generation 2 during"):
        writer.commit([message])
    assert read_table(spark, url, *table).count() == 10
    frame.write.format("ingester").options(**source(url, table)).mode("append").save()
    assert read_table(spark, url, *table).count() == 11
