"""format("ingester") with a filter returns the rows of ``read_table``."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put
from tests.spark.loading import load
from tests.spark.spread_rows import ROWS

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("pushes", ["true", "false"])
def test_one_frame_serves_many_queries(
    spark: SparkSession, url: str, spread: Table, pushes: str
) -> None:
    """Spark would keep the filters of one query for the next one, if it could push them."""
    frame = load(spark, url, spread)
    spark.conf.set(PUSHDOWN, pushes)
    try:
        low, high = frame.where("time_day = date'2026-11-20'"), frame.where("i >= 4")
        assert (low.count(), frame.count(), high.count()) == (3, ROWS, 4)
        assert low.union(high).count() == 7
        assert low.alias("a").join(high.alias("b"), "time_day", "left").count() >= 3
        assert low.join(low.select("i"), "i").count() == 2  # the third has no i
    finally:
        spark.conf.unset(PUSHDOWN)


def test_pushdown_is_refused_with_what_to_use_instead(
    spark: SparkSession, url: str, spread: Table
) -> None:
    with pytest.raises(Exception, match=r"'pushdown' was withdrawn: .* use the option filter"):
        load(spark, url, spread, pushdown=True)


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
