"""The columns of a table as Spark sees them: its own, then those of its partition spec.

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

A partition column has the same type and values whether Spark reads the folder's name, pyarrow reads
the manifest, or this module computes it from a buffered row (``tests/spark/test_partition_by.py``).
Their names and types are in :mod:`persist.partitioning.columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ingester.schema.types import carrier as carrier
from ingester.schema.types import is_nanoseconds as is_nanoseconds
from ingester.schema.types import seen_type as seen_type
from ingester.spark.errors import RequestRefused
from persist.parquet.sparse_rows import Nulls
from persist.partitioning import (
    PartitionValues,
    partition_columns,
    partition_scalar,
    partition_values,
    with_columns,
)
from persist.table import TableDefinition

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


OPERATION = "_op"
"""The column of a keyed table's buffered or written rows: ``upsert`` or ``delete``."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table that are read, and the Arrow types that carry them.

    Attributes:
        data: Names of the table's own columns, in its order.
    """

    definition: TableDefinition
    data: tuple[str, ...]

    def data_fields(self) -> list[pa.Field]:
        """The table's own columns, in the types that carry them to Spark."""
        schema = self.definition.schema
        return [pa.field(name, carrier(schema.field(name).type)) for name in self.data]

    def partition_fields(self) -> list[pa.Field]:
        """All columns of the partition spec, in folder order."""
        columns = partition_columns(self.definition.spec, self.definition.schema)
        return [pa.field(field.name, carrier(field.type)) for field in columns]

    def fields(self) -> list[pa.Field]:
        """Both kinds, in the order that every reader uses."""
        return [*self.data_fields(), *self.partition_fields()]

    def partition_scalars(self, values: PartitionValues) -> list[pa.Scalar]:
        """One partition's values, in the types of its partition columns."""
        return [
            partition_scalar(value, field.type)
            for value, field in zip(values, self.partition_fields(), strict=True)
        ]

    def carried(self, batch: pa.RecordBatch, values: PartitionValues) -> pa.RecordBatch:
        """Rows of one partition with the columns of :meth:`fields`.

        A missing column is null; columns that were not requested are dropped.
        """
        arrays = _columns(batch, self.data_fields())
        for scalar in self.partition_scalars(values):
            arrays.append(pa.repeat(scalar, batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields()))

    def of_any(self, batch: pa.RecordBatch, extra: Sequence[str] = ()) -> pa.RecordBatch:
        """Rows of any partitions with the columns of :meth:`fields`, followed by ``extra``."""
        spec, schema = self.definition.spec, self.definition.schema
        batch = with_columns(batch, spec.columns, schema)
        arrays = _columns(batch, self.data_fields())
        found = partition_values(batch, spec)
        for field, (values, places) in zip(self.partition_fields(), found, strict=True):
            scalars = [partition_scalar(value, field.type) for value in values]
            arrays.append(pa.array(scalars, field.type).take(pa.array(places)))
        rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields()))
        for name in extra:
            rows = rows.append_column(name, batch.column(name))
        return rows


def asked_columns(definition: TableDefinition, names: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of an answer: the given ones, or the table's and then its partition columns.

    Raises:
        ValueError: An unknown column, or one that is given twice.
    """
    known = (*definition.schema.names, *definition.spec.names)
    if names is None:
        return known
    for name in names:
        if name not in known:
            raise RequestRefused(f"no column {name!r}; the table has {', '.join(known)}")
    if len(set(names)) != len(names) or not names:
        raise RequestRefused(f"columns {list(names)}: give at least one, and each only once")
    return tuple(names)


def _columns(batch: pa.RecordBatch, fields: Sequence[pa.Field]) -> list[pa.Array]:
    """The batch's columns with these names; missing ones share arrays of nulls."""
    nulls, found = Nulls(pa.schema(fields)), []
    for field in fields:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            found.append(nulls.of(field.name, batch.num_rows))
            continue
        column = batch.column(index)
        found.append(column if column.type == field.type else column.cast(field.type))
    return found
