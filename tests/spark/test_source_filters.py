"""format("ingester") with pushed or given filters returns the rows of ``read_table``."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put
from tests.spark.loading import load, pushes_filters
from tests.spark.spread_rows import ROWS

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
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


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pushes_filters
def test_any_condition_gives_the_rows_that_spark_finds_in_the_same_files(
    spark: SparkSession, url: str, spread: Table
) -> None:
    files = read_table(spark, url, *spread)
    # Rows in memory are the reference, because Spark's readers and caches treat NaN differently.
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
    """Spark keeps the filters of one query for the next one, unless that query pushes none."""
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
    "not f < 5": 4,
    "not f >= 2.5": 4,
    "not f = 5": 6,
    "s >= 'b'": 4,
    "s = ''": 1,
    "d = '0.25'": 1,
    "d > '1.3'": 2,
    "d > 1.3": 2,
    "d > 1.245": 3,
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
def test_a_filter_option_keeps_the_same_rows_in_every_reader(
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
        ("time between '2026-11-20' and '2026-11-20T23:59:59Z'", 3),
        ("i = 4 or s = 'a'", 2),
        ("n >= '1970-01-01T00:00:00.000001'", 3),
    ],
)
def test_a_filter_option_opens_only_files_that_can_match(
    spark: SparkSession, url: str, spread: Table, text: str, files: int
) -> None:
    native = read_table(spark, url, *spread, reader="native", filter=text)
    assert len(native.inputFiles()) == files
    source = load(spark, url, spread, filter=text, tasks=ROWS)
    assert source.rdd.getNumPartitions() == files


def test_a_filter_option_applies_to_buffered_rows(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    batch = pa.record_batch({"k": [1, 2, 3], "v": [10, 20, 30], "w": [0, 0, 0]})
    create(client, table, batch.schema, primary_key=["k"])
    put(client, table, batch)
    persist(client, table)
    # Row 1 no longer matches, row 2 now matches, and row 4 is new.
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


@pushes_filters
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
    # Spark asks for one task even if no rows are read.
    assert every.where(condition).rdd.getNumPartitions() == max(files, 1)
