"""Refusals of ``rewrite(partition_by=…)``, and of writes to tables that it has changed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import WriteRefused, read_table, rewrite
from persist.manifest import Manifest
from persist.partitioning import InvalidPartitionSpec
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, describe, events, persist, put

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["day(nothing)"], "no column 'nothing'"),
        (["daily(time)"], r"'daily\(time\)' is not one of"),
        (["hour(i)"], "of type int64 has no hour partitions"),
        (["day(time)", "day(time)"], "repeat a name"),
        (["identity(h)"], "the table has a column 'h_key' already"),
    ],
)
def test_what_does_not_fit_the_table_is_refused_and_changes_nothing(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, asked: list[str], why: str
) -> None:
    batch = events(0, 10)
    for name in ("h", "h_key"):
        batch = batch.append_column(name, pa.nulls(10, pa.string()))
    put(client, table, batch)
    persist(client, table)
    before = Manifest(open_store(url), *table).head()
    with pytest.raises(InvalidPartitionSpec, match=why):
        rewrite(spark, url, *table, partition_by=asked)
    assert Manifest(open_store(url), *table).head() == before


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"filter": "tiem > 5"}, "unknown column 'tiem'"),
        ({"filter": "time_day = '2026-11-21'"}, "unknown column 'time_day'"),
        ({"sort_by": ["nope"]}, "no column 'nope'"),
    ],
    ids=str,
)
def test_whatever_else_is_refused_is_refused_before_the_table_changes(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    table: Table,
    more: dict[str, Any],
    why: str,
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    before = Manifest(open_store(url), *table).head()
    with pytest.raises((ValueError, WriteRefused), match=why):
        rewrite(spark, url, *table, partition_by=["hour(time)"], **more)
    assert Manifest(open_store(url), *table).head() == before


def test_a_column_and_a_partition_of_one_name_do_not_come_together(
    spark: SparkSession, client: fl.FlightClient, daemon: Daemon, url: str, table: Table
) -> None:
    """The daemon does not yet know the new spec when it receives the new column."""
    put(client, table, events(0, 10))
    persist(client, table)
    rewrite(spark, url, *table, partition_by=["identity(host)"])
    batch = events(10, 10).append_column("host_key", pa.nulls(10, pa.string()))
    with pytest.raises(pa.ArrowInvalid, match="'host_key' is the name of a partition column"):
        put(client, table, batch)
    newest = Manifest(open_store(url), *table).load()
    assert "host_key" not in TableDefinition.of_state(newest).schema.names
    assert read_table(spark, url, *table).columns == ["time", "host", "v", "i", "host_key"]


def test_a_table_may_be_created_again_as_it_was_at_first(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = events(0, 1).schema
    create(client, table, schema, partition_by=["day(time)"])
    put(client, table, events(0, 10))
    persist(client, table)
    rewrite(spark, url, *table, partition_by=["hour(time)"])
    put(client, table, events(10, 10))
    persist(client, table)
    for fields in (["day(time)"], ["hour(time)"]):
        create(client, table, schema, partition_by=fields)
    with pytest.raises(pa.ArrowInvalid, match="exists with partition_by"):
        create(client, table, schema, partition_by=["identity(host)"])
    assert describe(client, table)["partition_by"] == ["hour(time)"]


def test_partitions_of_a_table_with_a_primary_key_stay(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, primary_key=["i"])
    put(client, table, events(0, 10))
    persist(client, table)
    with pytest.raises(WriteRefused, match="a key must stay in its partition"):
        rewrite(spark, url, *table, partition_by=["bucket(4, i)"])
