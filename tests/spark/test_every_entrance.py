"""Every type, with its extremes, comes through Spark's entrances as the daemon has it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.client import Client
from ingester.pushes.config import push_config
from ingester.spark import read_table
from ingester.spark.push import push
from tests.drivers.all_types import all_types, check_same
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table
from tests.spark.test_append_writer import save

pytestmark = pytest.mark.spark

Entrance = Callable[[DataFrame, Daemon, str, Table], object]


def _append(frame: DataFrame, daemon: Daemon, url: str, table: Table) -> None:
    save(frame, url, table)


def _keyed(frame: DataFrame, daemon: Daemon, url: str, table: Table) -> None:
    save(frame, url, table, endpoint=daemon.flight)


def _push(frame: DataFrame, daemon: Daemon, url: str, table: Table) -> None:
    push(frame, *table, config=push_config({"regions": {"here": {"url": url}}}))


ENTRANCES: list[tuple[Entrance, list[str]]] = [
    (_append, []),
    (_keyed, ["n"]),
    (_push, []),
    (_push, ["n"]),
]


@pytest.fixture(scope="module")
def source(daemon: Daemon) -> tuple[Table, pa.Table]:
    """A table of all types in files, and its rows."""
    rows, table = all_types("us"), ("spark", "all_types")
    with Client(daemon.flight) as client:
        client.create_table(*table, rows.schema)
        client.write(*table, rows)
        client.persist(*table)
    return table, rows


@pytest.mark.parametrize(("entrance", "key"), ENTRANCES)
def test_every_type_with_its_extremes_comes_through_spark(
    spark: SparkSession,
    daemon: Daemon,
    url: str,
    source: tuple[Table, pa.Table],
    table: Table,
    entrance: Entrance,
    key: list[str],
) -> None:
    origin, rows = source
    with Client(daemon.flight) as client:
        client.create_table(*table, rows.schema, primary_key=key)
        entrance(read_table(spark, url, *origin), daemon, url, table)
        until(lambda: client.query(*table).num_rows == rows.num_rows, "the daemon has the rows")
        check_same(client.query(*table), rows)


@pytest.mark.parametrize(("entrance", "key"), ENTRANCES)
@pytest.mark.parametrize("select", ["1L AS n, cast(null AS double) AS v", "1L AS n"])
def test_null_in_a_required_column_is_refused(
    spark: SparkSession,
    daemon: Daemon,
    url: str,
    table: Table,
    entrance: Entrance,
    key: list[str],
    select: str,
) -> None:
    required = [pa.field("n", pa.int64()), pa.field("v", pa.float64(), nullable=False)]
    with Client(daemon.flight) as client:
        client.create_table(*table, pa.schema(required), primary_key=key)
        with pytest.raises(Exception, match="column 'v'"):
            entrance(spark.sql(f"SELECT {select}"), daemon, url, table)
        assert client.query(*table).num_rows == 0
