"""Spark's types for a table's columns, by the Arrow types that carry them.

A value changes its type only. Types that Spark lacks travel as Spark's own Parquet reader gives
them:

    uint8, uint16, uint32, uint64       int16, int32, int64, decimal(20, 0)
    timestamp[us, any time zone]        TimestampType: an instant
    timestamp[us]                       TimestampNTZType: a wall clock
    timestamp[ns], with zone or not     int64 nanoseconds, converted by :func:`restored`

Spark's timestamps have microseconds. Nanoseconds are rounded down (towards the past, also before
1970) by all readers alike and at any depth (``tests/spark/test_types.py``); an integer column keeps
them exactly. As the conversion comes last, a filter on such a column is not pushed into the files;
one on its partition column is.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ingester.schema.types import carrier as carrier
from ingester.schema.types import is_nanoseconds as is_nanoseconds
from ingester.schema.types import seen_type as seen_type

_PLAIN = {
    pa.null(): T.NullType(),
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.timestamp("us"): T.TimestampNTZType(),
    pa.timestamp("us", "UTC"): T.TimestampType(),
}


def quoted(name: str) -> str:
    """A column's name quoted for Spark's expressions."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def spark_type(kind: pa.DataType) -> T.DataType:
    """The Spark type of a carrier.

    Raises:
        TypeError: Spark has no such type.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:
            raise TypeError(f"Spark has no {kind}: a scale must be between 0 and the precision")
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_struct(kind):
        return spark_schema([kind.field(i) for i in range(kind.num_fields)])
    raise TypeError(f"Spark has no type for {kind}")


def spark_schema(fields: list[pa.Field]) -> T.StructType:
    """Spark's schema of carrier fields. All are nullable, as an old file may lack any column."""
    made = []
    for field in fields:
        try:
            made.append(T.StructField(field.name, spark_type(field.type), nullable=True))
        except TypeError as exc:
            raise TypeError(f"column {field.name!r}: {exc}") from exc
    return T.StructType(made)


def holds_nanoseconds(kind: pa.DataType) -> bool:
    """Whether values of this type contain nanosecond timestamps, at any depth."""
    if pa.types.is_map(kind):
        return holds_nanoseconds(kind.key_type) or holds_nanoseconds(kind.item_type)
    if pa.types.is_list(kind):
        return holds_nanoseconds(kind.value_type)
    if pa.types.is_struct(kind):
        return any(holds_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return is_nanoseconds(kind)


def restored(column: Column, kind: pa.DataType) -> Column:
    """The column with integer nanoseconds converted to timestamps; ``kind`` is the table's type."""
    if not holds_nanoseconds(kind):
        return column
    if is_nanoseconds(kind):
        return _timestamp(column, with_zone=kind.tz is not None)
    if pa.types.is_list(kind):
        return F.transform(column, lambda item: restored(item, kind.value_type))
    if pa.types.is_map(kind):
        return _restored_map(column, kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    made = [restored(column.getField(f.name), f.type).alias(f.name) for f in fields]
    return F.when(column.isNotNull(), F.struct(*made))


def floored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """As :func:`restored` for an Arrow column, where Spark's functions are not available."""
    instants = column.cast(pa.timestamp("ns", kind.tz and "UTC"))
    whole = pc.floor_temporal(instants, unit="microsecond")
    return whole.cast(pa.timestamp("us", kind.tz and "UTC"))


def _restored_map(column: Column, kind: pa.MapType) -> Column:
    if holds_nanoseconds(kind.item_type):
        column = F.transform_values(column, lambda _, item: restored(item, kind.item_type))
    if holds_nanoseconds(kind.key_type):
        column = F.transform_keys(column, lambda key, _: restored(key, kind.key_type))
    return column


def _timestamp(nanoseconds: Column, *, with_zone: bool) -> Column:
    # `div` rounds towards zero, and floor() would go through an inexact double.
    thousand = F.lit(1000).cast("bigint")
    below = F.when(nanoseconds % thousand < 0, F.lit(1)).otherwise(F.lit(0))
    microseconds = F.call_function("div", nanoseconds, thousand) - below
    if with_zone:
        return F.timestamp_micros(microseconds)
    # Not through an instant, which would depend on the session's time zone.
    epoch = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
    return F.timestamp_add("MICROSECOND", microseconds, epoch)
