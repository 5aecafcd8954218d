"""A write whose number is committed is skipped if it has the same rows, and refused otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from persist.manifest import Manifest, Proposal, Txn, WriterIdentity, commit
from persist.store import open_store
from tests.drivers.wire import Table, create, events, persist, put
from tests.spark.test_append_writer import Stream, numbers, save, shows

pytestmark = pytest.mark.spark

WRITER = WriterIdentity("_spark", "earlier", 0)


@pytest.fixture
def nightly(client: fl.FlightClient, table: Table) -> dict[str, object]:
    create(client, table, events(0, 1).schema, partition_by=["day(time)"])
    return {"txn_app_id": "nightly"}


def test_a_version_with_other_rows_is_refused(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    save(numbers(spark, 0, 100), url, table, txn_version=1, **nightly)
    head = Manifest(open_store(url), *table).head()
    changed = numbers(spark, 0, 100).replace("h3", "h4")
    others: tuple[tuple[DataFrame, str], ...] = (
        (numbers(spark, 0, 99), "100 rows then, 99 now"),
        (numbers(spark, 1, 100), "100 rows then, 100 now"),
        (changed, "100 rows then, 100 now"),
        (numbers(spark, 0, 0), "100 rows then, 0 now"),
    )
    for frame, told in others:
        with pytest.raises(Exception, match=f"txn_version 1 is committed with other.*{told}"):
            save(frame, url, table, txn_version=1, **nightly)
    assert Manifest(open_store(url), *table).head() == head
    save(numbers(spark, 100, 10), url, table, txn_version=2, **nightly)
    save(numbers(spark, 110, 10), url, table, txn_version=1, txn_app_id="another")
    shows(client, table, list(range(120)))


def test_neither_order_nor_division_of_the_rows_matters(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    frame = numbers(spark, 0, 1000)
    for again in (
        frame,
        frame.orderBy(frame.i.desc()),
        frame.repartition(5, "host"),
        frame.coalesce(1).select("v", "i", "host", "time"),
        frame.withColumn("i", frame.i.cast("smallint")),
    ):
        save(again, url, table, txn_version=7, **nightly)
    shows(client, table, list(range(1000)))


def test_a_number_of_one_writer_is_compared_in_each_table_alone(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    """A job that writes several tables with one number, and dies between them, runs again."""
    other = (table[0], f"{table[1]}_other")
    create(client, other, events(0, 1).schema)
    save(numbers(spark, 0, 10), url, table, txn_version=890, **nightly)
    for _ in range(2):
        save(numbers(spark, 0, 10), url, table, txn_version=890, **nightly)
        save(numbers(spark, 50, 20), url, other, txn_version=890, **nightly)
    shows(client, table, list(range(10)))
    shows(client, other, list(range(50, 70)))


def test_a_job_whose_checkpoint_was_deleted_numbers_from_zero_again_and_is_refused(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    """``foreachBatch`` with the batch's number as ``txn_version``."""
    for batch in range(3):
        save(numbers(spark, 10 * batch, 10), url, table, txn_version=batch, **nightly)
    with pytest.raises(Exception, match=r"txn_version 0 is committed with other.*10 rows then, 30"):
        save(numbers(spark, 0, 30), url, table, txn_version=0, **nightly)
    save(numbers(spark, 30, 10), url, table, txn_version=0, txn_app_id="nightly-2")
    shows(client, table, list(range(40)))


def test_a_lower_version_that_was_never_committed_is_refused(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    save(numbers(spark, 0, 10), url, table, txn_version=20260103, **nightly)
    backfill = numbers(spark, 100, 10)
    with pytest.raises(Exception, match=r"txn_version 20260102 is below 20260103.* another txn_a"):
        save(backfill, url, table, txn_version=20260102, **nightly)
    save(backfill, url, table, txn_version=20260102, txn_app_id="backfill")
    save(numbers(spark, 10, 10), url, table, txn_version=20260104, **nightly)
    save(numbers(spark, 0, 10), url, table, txn_version=20260103, **nightly)
    shows(client, table, [*range(20), *range(100, 110)])


def test_a_version_without_a_content_is_skipped_as_before(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, nightly: dict[str, object]
) -> None:
    manifest = Manifest(open_store(url), *table)
    commit(manifest, None, Proposal([Txn("nightly", 3)]), WRITER)
    save(numbers(spark, 0, 10), url, table, txn_version=3, **nightly)
    with pytest.raises(Exception, match="txn_version 2 is below 3"):
        save(numbers(spark, 0, 10), url, table, txn_version=2, **nightly)
    save(numbers(spark, 0, 10), url, table, txn_version=4, **nightly)
    shows(client, table, list(range(10)))


def test_a_stream_with_a_restored_checkpoint_is_refused_if_its_batches_differ(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    target = (table[0], f"{table[1]}_target")
    create(client, target, events(0, 1).schema)

    def rows(first: int) -> None:
        put(client, table, events(first, 10))
        persist(client, table)

    rows(0)
    stream = Stream(spark, url, table, tmp_path / "checkpoint")
    stream.run(target)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    rows(10)
    stream.run(target)
    head = Manifest(open_store(url), *target).head()
    # The next batch after the backup has the rows of two batches now.
    rows(20)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")
    with pytest.raises(Exception, match=r"batch 1 of this stream .*10 rows then, \d+ now"):
        stream.run(target)
    assert Manifest(open_store(url), *target).head() == head
    shows(client, target, list(range(20)))
