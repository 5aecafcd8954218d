"""Every reader of Spark gives the rows that a filter has in exact Python."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.client import Client
from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.filter_model import Filter, batch_of, filters, found_by, tempting_rows
from tests.drivers.wire import Table, persist, put
from tests.spark.loading import load

pytestmark = pytest.mark.spark

ROWS = tempting_rows()
FILE_ROWS = 4
BUFFERED = len(ROWS) // 2
AT_ONCE = 12
"""Filters in one Spark job."""

Way = Literal["native", "arrow", "source", "tail"]


@pytest.fixture(scope="module")
def exact(daemon: Daemon) -> dict[Way, Table]:
    """The rows in files of four, and half of them in files and half in the buffer."""
    files, both = ("exact", "files"), ("exact", "both")
    with fl.connect(daemon.flight) as client:
        for start in range(0, len(ROWS), FILE_ROWS):
            put(client, files, batch_of(ROWS[start : start + FILE_ROWS]))
            persist(client, files)
        put(client, both, batch_of(ROWS[BUFFERED:]))
        persist(client, both)
        put(client, both, batch_of(ROWS[:BUFFERED]))
    return {"native": files, "arrow": files, "source": files, "tail": both}


def read(
    spark: SparkSession, url: str, daemon: Daemon, tables: dict[Way, Table], way: Way, text: str
) -> DataFrame:
    table = tables[way]
    if way == "source":
        return load(spark, url, table, filter=text, columns="id")
    options: dict[str, Any] = {"filter": text, "columns": ["id"]}
    if way == "tail":
        return read_table(spark, url, *table, endpoint=daemon.flight, **options)
    return read_table(spark, url, *table, reader=way, **options)


@pytest.mark.parametrize("way", ["native", "arrow", "source", "tail"])
@settings(max_examples=3)
@given(asked=st.lists(filters, min_size=AT_ONCE, max_size=AT_ONCE))
def test_a_filter_finds_the_rows_of_exact_python(
    spark: SparkSession,
    url: str,
    daemon: Daemon,
    exact: dict[Way, Table],
    way: Way,
    asked: list[Filter],
) -> None:
    frames = [
        read(spark, url, daemon, exact, way, each.text).withColumn("n", F.lit(number))
        for number, each in enumerate(asked)
    ]
    found: list[list[int]] = [[] for _ in asked]
    for row in reduce(DataFrame.unionAll, frames).collect():
        found[row.n].append(row.id)
    for each, ids in zip(asked, found, strict=True):
        assert sorted(ids) == found_by(each, ROWS), each.text


@pytest.mark.parametrize("way", ["native", "arrow", "source"])
def test_early_dates_and_times_are_found_by_every_comparison(
    spark: SparkSession,
    url: str,
    daemon: Daemon,
    exact: dict[Way, Table],
    way: Way,
) -> None:
    """Spark's Parquet reader skips row groups by java.sql.Timestamp, which lacks days of 1582."""
    times = ("1582-10-04", "1582-10-05", "1582-10-10T00:00:00Z", "1899-12-31T12:00:00Z")
    listed = ", ".join(f"'{each}'" for each in times)
    texts = [f"t in ({listed})", f"not t in ({listed})", f"b is not null and t in ({listed})"]
    for operator, each in itertools.product(("=", "!=", "<", "<=", ">", ">="), times):
        texts += [f"t {operator} '{each}'", f"d {operator} '{each[:10]}'"]
    frames = [
        read(spark, url, daemon, exact, way, text).withColumn("n", F.lit(number))
        for number, text in enumerate(texts)
    ]
    found: list[list[int]] = [[] for _ in texts]
    for row in reduce(DataFrame.unionAll, frames).collect():
        found[row.n].append(row.id)
    with Client(daemon.flight) as client:
        for text, ids in zip(texts, found, strict=True):
            answered = client.query(*exact[way], columns=["id"], filter=text)
            assert sorted(ids) == sorted(answered["id"].to_pylist()), text


def test_a_value_that_the_type_lacks_is_found_nowhere_beside_another_one(
    spark: SparkSession, url: str, daemon: Daemon, exact: dict[Way, Table]
) -> None:
    for text in ("whole = 1e38 and b = true", "not (whole != 1e38) and not (b != false)"):
        assert read(spark, url, daemon, exact, "native", text).count() == 0, text


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_zeros_of_either_sign_are_equal(
    spark: SparkSession, url: str, client: fl.FlightClient, table: Table, kind: pa.DataType
) -> None:
    """Spark's Parquet reader skips row groups by their dictionaries, in which they differ."""
    zeros = pa.array([-0.0] * 50 + [None], kind)
    put(client, table, pa.record_batch({"f": zeros}))
    persist(client, table)
    many = ", ".join(map(str, range(20)))
    for text in ("f = 0", "f >= 0", "f <= 0", f"f in ({many})", "f in (0, 1)", "not f < 0"):
        assert read_table(spark, url, *table, reader="native", filter=text).count() == 50, text
    frame = read_table(spark, url, *table, reader="native")
    for text in ("f = 0", "f >= 0", f"f in ({many})"):
        assert frame.where(text).count() == 50, text
    assert frame.where("f <> 0 or f > 0 or f < 0").count() == 0


PROGRAM = """
import sys
from ingester.client import Client
from ingester.spark import read_table
from ingester.spark.session import local_session

spark = local_session("far", cores=1, shuffle_partitions=1)
for text in sys.argv[4:]:
    print(sorted(str(row.d) for row in
        read_table(spark, *sys.argv[1:4], filter=text, columns=["d"], reader="native").collect()))
"""


def test_a_date_does_not_depend_on_the_time_zone_of_the_machine(
    url: str, client: fl.FlightClient, table: Table
) -> None:
    """On Samoa there was no 30 December 2011; before 1582 Java counted days as Julius Caesar."""
    days = ["1582-10-10", "1582-10-20", "2011-12-30", "2011-12-31"]
    dates = pa.array(days).cast(pa.date32())
    put(client, table, pa.record_batch({"d": dates}))
    persist(client, table)
    asked = ["d = '1582-10-10'", "d <= '2011-12-30'", "d > '0001-01-01' and d < '1582-10-20'"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, *table, *asked],
        env={**os.environ, "TZ": "Pacific/Apia"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.splitlines() == [str(days[:1]), str(days[:3]), str(days[:1])], done.stderr
