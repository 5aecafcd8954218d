"""Every column type, written through the daemon and read by every reader."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put
from tests.spark.loading import load

pytestmark = pytest.mark.spark

INSTANT = dt.datetime(2026, 3, 8, 7, 30, 0, 123_456, dt.UTC)
WALL = dt.datetime(2026, 3, 8, 2, 30, 0, 123_456)
"""A time of day that did not exist on that day in New York, the session's time zone."""

# Column: Arrow type, two values, Spark's name of the type. The third row is all null.
KINDS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "bool": (pa.bool_(), [True, False], "boolean"),
    "i8": (pa.int8(), [-128, 127], "tinyint"),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1], "smallint"),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1], "int"),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1], "bigint"),
    "u8": (pa.uint8(), [0, 2**8 - 1], "smallint"),
    "u16": (pa.uint16(), [0, 2**16 - 1], "int"),
    "u32": (pa.uint32(), [0, 2**32 - 1], "bigint"),
    "u64": (pa.uint64(), [0, 2**64 - 1], "decimal(20,0)"),
    "f32": (pa.float32(), [1.5, float("inf")], "float"),
    "f64": (pa.float64(), [0.1, -0.0], "double"),
    "d9": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("9999999.99")], "decimal(9,2)"),
    "d38": (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("1E+20")], "decimal(38,10)"),
    "text": (pa.string(), ["", "é😀"], "string"),
    "bytes": (pa.binary(), [b"", b"\x00\xff"], "binary"),
    "date": (pa.date32(), [dt.date(1500, 1, 1), dt.date(9999, 12, 31)], "date"),
    "instant": (pa.timestamp("us", "UTC"), [INSTANT, INSTANT.replace(year=1500)], "timestamp"),
    "berlin": (pa.timestamp("us", "Europe/Berlin"), [INSTANT, INSTANT], "timestamp"),
    "wall": (pa.timestamp("us"), [WALL, WALL.replace(year=1500)], "timestamp_ntz"),
    "list": (pa.list_(pa.uint32()), [[], [2**32 - 1, None]], "array<bigint>"),
    "struct": (
        pa.struct({"a.b": pa.uint8(), "t": pa.timestamp("us", "UTC")}),
        [{"a.b": 255, "t": INSTANT}, {"a.b": None, "t": None}],
        "struct<a.b:smallint,t:timestamp>",
    ),
    "map": (pa.map_(pa.string(), pa.uint16()), [[], [("k", 65535)]], "map<string,int>"),
    "nested": (
        pa.list_(pa.struct({"m": pa.map_(pa.int32(), pa.list_(pa.timestamp("us")))})),
        [[{"m": [(1, [WALL, None])]}, None], [{"m": None}]],
        "array<struct<m:map<int,array<timestamp_ntz>>>>",
    ),
}


def test_every_type_comes_back_the_same_from_every_reader(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    arrays = [pa.array([*values, None], kind) for kind, values, _ in KINDS.values()]
    batch = pa.record_batch([pa.array([0, 1, 2]), *arrays], names=["i", *KINDS])
    create(client, table, batch.schema)
    put(client, table, batch)
    frames = {"tail": read_table(spark, url, *table, endpoint=daemon.flight)}
    persist(client, table)
    for reader in ("native", "arrow"):
        frames[reader] = read_table(spark, url, *table, reader=reader)
    frames["source"] = load(spark, url, table)

    for source, frame in frames.items():
        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        assert types == {"i": "bigint", **{name: kind[2] for name, kind in KINDS.items()}}, source
        got = frame.orderBy("i").toArrow()
        for name, (_, values, _) in KINDS.items():
            assert got[name].to_pylist() == [*values, None], (source, name)


NANOSECONDS = [-1, -1_000, -999_999_999_999, 0, 1_700_000_000_123_456_789, None]
"""One nanosecond before 1970 is in the preceding microsecond."""
MICROSECONDS = [-1, -1, -1_000_000_000, 0, 1_700_000_000_123_456, None]


def test_nanoseconds_are_rounded_down_at_any_depth_by_every_reader(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    zoned, wall = pa.timestamp("ns", "UTC"), pa.timestamp("ns")
    ticks = pa.array(NANOSECONDS, pa.int64())
    instants, walls = ticks.cast(zoned), ticks.cast(wall)
    structs = pa.StructArray.from_arrays([instants, walls], ["z", "w"], mask=ticks.is_null())
    lists = pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), structs)
    maps = pa.MapArray.from_arrays(pa.array(range(7), pa.int32()), pa.array(range(6)), walls)
    batch = pa.record_batch(
        [pa.array(range(6)), instants, walls, structs, lists, maps],
        names=["i", "z", "w", "s", "l", "m"],
    )
    create(client, table, batch.schema, timestamp_unit="ns", partition_by=["identity(z)"])
    put(client, table, batch)
    frames = {"tail": read_table(spark, url, *table, endpoint=daemon.flight)}
    persist(client, table)
    for reader in ("native", "arrow"):
        frames[reader] = read_table(spark, url, *table, reader=reader)

    instant = [_instant(us) for us in MICROSECONDS]
    local = [t and t.replace(tzinfo=None) for t in instant]
    inside = [t and {"z": t, "w": t.replace(tzinfo=None)} for t in instant]
    for source, frame in frames.items():
        got = frame.orderBy("i").toArrow()
        assert got["z"].to_pylist() == got["z_key"].to_pylist() == instant, source
        assert got["w"].to_pylist() == local, source
        assert got["s"].to_pylist() == inside, source
        assert got["l"].to_pylist() == [[each] for each in inside], source
        assert got["m"].to_pylist() == [[(n, each)] for n, each in enumerate(local)], source


def _instant(microseconds: int | None) -> dt.datetime | None:
    if microseconds is None:
        return None
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)


def test_a_decimal_that_spark_does_not_have_is_refused_by_name() -> None:
    from ingester.spark.read.columns import spark_schema

    with pytest.raises(TypeError, match=r"column 'd': Spark has no decimal128\(5, -2\)"):
        spark_schema([pa.field("d", pa.decimal128(5, -2))])
