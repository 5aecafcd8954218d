"""Spark's types of a table's columns, by the Arrow types that carry them (``schema.carried``).

Law of this file: pure, and no value changes but in its type. What Spark has no type for travels in
the one that Spark's own Parquet reader gives it:

    uint8, uint16, uint32, uint64       int16, int32, int64, decimal(20, 0)
    timestamp[us, any time zone]        TimestampType: an instant
    timestamp[us]                       TimestampNTZType: a wall clock
    timestamp[ns], with zone or not     int64 nanoseconds, made a timestamp by ``nanoseconds``
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from ingester.schema.carried import carrier as carrier
from ingester.schema.carried import is_nanoseconds as is_nanoseconds
from ingester.schema.carried import seen_type as seen_type

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


def spark_type(kind: pa.DataType) -> T.DataType:
    """The Spark type of a carrier.

    Raises:
        TypeError: Spark has no such type.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:
            raise TypeError(f"Spark has no {kind}: its scales are from 0 to the precision")
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_struct(kind):
        return spark_schema([kind.field(i) for i in range(kind.num_fields)])
    raise TypeError(f"Spark has no type for {kind}")


def spark_schema(fields: list[pa.Field]) -> T.StructType:
    """Spark's schema of carried fields, all nullable: an old file may lack any of them."""
    made = []
    for field in fields:
        try:
            made.append(T.StructField(field.name, spark_type(field.type), nullable=True))
        except TypeError as exc:
            raise TypeError(f"column {field.name!r}: {exc}") from exc
    return T.StructType(made)


def holds_nanoseconds(kind: pa.DataType) -> bool:
    """True where there are such timestamps in a value of this type, at any depth."""
    if pa.types.is_map(kind):
        return holds_nanoseconds(kind.key_type) or holds_nanoseconds(kind.item_type)
    if pa.types.is_list(kind):
        return holds_nanoseconds(kind.value_type)
    if pa.types.is_struct(kind):
        return any(holds_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return is_nanoseconds(kind)
