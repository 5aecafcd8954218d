"""DataFrames before they are written: do their columns fit the tables, and which task gets a row?

    no partitions, no key   no shuffle
    partitions              the rows of one partition together, large ones on several tasks
    a key                   sorted by partition and key, each key at one task

The distribution of rows decides the number of files, not their contents; but rows with one key are
always neighbours in one task. Partition values are computed by Spark here, so that rows travel to
Python only once (tests/pushes/test_spark_push).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from ingester.pushes.record import PushPlan
from ingester.pushes.regions.shapes import ShapeClash, plan_schema, with_schema
from ingester.pushes.regions.tables import Tables, plan_for, without_folders
from ingester.pushes.spark.result import PushRefused
from ingester.schema.types import takes
from ingester.spark.versions import arrow_schema
from persist.partitioning import PartitionField, PartitionSpec, partition_values
from persist.table import TableDefinition

_DAY_US = 86_400_000_000
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_SUPPORTED = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


def frame_columns(frame: DataFrame) -> pa.Schema:
    """Return the columns of a frame, without those of NullType.

    Raises:
        PushRefused: no columns, an unsupported type, or a duplicate name.
    """
    if not frame.schema.fields:
        raise PushRefused("the frame has no columns")
    names = [field.name for field in frame.schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PushRefused(f"the frame has duplicate columns {', '.join(map(repr, twice))}")
    typed = [f for f in frame.schema.fields if not isinstance(f.dataType, T.NullType)]
    for field in typed:
        for kind in _unsupported(field.dataType):
            raise PushRefused(
                f"column {field.name!r}: Spark's type {kind.simpleString()} is not supported;"
                " cast it, or drop it"
            )
    return pa.schema([field.with_nullable(True) for field in arrow_schema(T.StructType(typed))])


def plan_of(columns: pa.Schema, tables: Tables, asked: PushPlan) -> PushPlan:
    """Return the plan of a push of these columns.

    Args:
        asked: the requested shape of a new table, and the rows to replay.

    Raises:
        PushRefused: naming the region and the column that does not fit.
    """
    try:
        return plan_for(tables, with_schema(asked, columns))
    except ShapeClash as exc:
        raise PushRefused(str(exc)) from exc


def check_fits(columns: pa.Schema, plan: PushPlan) -> None:
    """Check that a frame has the columns that its push was started with.

    Raises:
        PushRefused: it has others.
    """
    schema = plan_schema(plan)
    for field in without_folders(columns, plan):
        place = schema.get_field_index(field.name)
        if place < 0 or not takes(schema.field(place).type, field.type):
            has = "none" if place < 0 else str(schema.field(place).type)
            raise PushRefused(
                f"column {field.name!r}: frame has {field.type}, the push was started with {has};"
                " use another push id"
            )


def _unsupported(kind: T.DataType) -> Iterator[T.DataType]:
    """The unsupported types, at any depth."""
    if isinstance(kind, T.ArrayType):
        yield from _unsupported(kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from _unsupported(kind.keyType)
        yield from _unsupported(kind.valueType)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _unsupported(field.dataType)
        if not kind.fields:
            yield kind
    elif not isinstance(kind, _SUPPORTED):
        yield kind


def arranged(frame: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return the same rows, distributed and sorted for the table's layout."""
    have = [field for field in definition.spec.fields if field.column in frame.columns]
    partition = [partition_column(field, definition.schema) for field in have]
    if definition.keyed:
        order = [*partition, *(_key(name, definition.schema) for name in definition.primary_key)]
        return frame.repartitionByRange(*order).sortWithinPartitions(*order)
    if not partition:
        return frame
    # A hint instead of repartition(): Spark may then split a large partition over several tasks.
    # It accepts columns only. Columns of tables never start with "_".
    made = {f"_partition_{place}": column for place, column in enumerate(partition)}
    names = list(made)
    return frame.withColumns(made).hint("rebalance", *names).drop(*names)


def named(name: str) -> Column:
    """Return the column with exactly this name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _key(name: str, schema: pa.Schema) -> Column:
    """A column of the key; texts in the order of their bytes, whatever their collation."""
    text = pa.types.is_string(schema.field(name).type)
    return named(name).cast("string") if text else named(name)


def partition_column(field: PartitionField, schema: pa.Schema) -> Column:
    """Return a column that is equal if and only if the field's partition values are."""
    column, kind = named(field.column), schema.field(field.column).type
    if field.transform == "identity":
        return column
    if field.transform == "bucket":
        assert field.buckets is not None
        return _bucket(column, kind, field.buckets)
    if field.transform == "hour":
        return F.floor(_microseconds(column, kind) / F.lit(_DAY_US // 24))
    days = F.unix_date(column) if pa.types.is_date32(kind) else _days(column, kind)
    if field.transform == "day":
        return days
    date = F.date_from_unix_date(days)
    year = F.year(date)
    return year if field.transform == "year" else year * F.lit(12) + F.month(date)


def _days(column: Column, kind: pa.DataType) -> Column:
    return F.floor(_microseconds(column, kind) / F.lit(_DAY_US)).cast("int")


def _microseconds(column: Column, kind: pa.TimestampType) -> Column:
    """The timestamp as a number, independent of the session's time zone."""
    if kind.tz:
        return F.unix_micros(column)
    return F.timestamp_diff("MICROSECOND", F.expr(_EPOCH), column)


def _bucket(column: Column, kind: pa.DataType, buckets: int) -> Column:
    """The bucket, by the function that lays out the files: Spark has no such hash."""
    carrier = kind
    if pa.types.is_timestamp(kind):
        times = 1000 if kind.unit == "ns" else 1
        column, carrier = _microseconds(column, kind) * F.lit(times), pa.int64()
    elif pa.types.is_date32(kind):
        column, carrier = F.unix_date(column).cast("bigint"), pa.int64()
    elif pa.types.is_integer(kind):
        # pandas turns integers with a null into floats. Neither nulls nor integers beyond 64 bits
        # have to be at the same task as the others of their bucket.
        column, carrier = F.coalesce(column.try_cast("bigint"), F.lit(0)), pa.int64()
    spec = PartitionSpec((PartitionField("bucket", "v", buckets),))

    def of(values: pd.Series) -> pd.Series:
        batch = pa.record_batch({"v": pa.Array.from_pandas(values, type=carrier)})
        [(distinct, places)] = partition_values(batch, spec)
        numbers = pd.Series([-1 if value is None else int(value) for value in distinct])
        return numbers.take(places).reset_index(drop=True).astype("int32")

    made: Any = pandas_udf  # its overloads know no lambda of series
    found: Column = made(of, "int")(column)
    return found
