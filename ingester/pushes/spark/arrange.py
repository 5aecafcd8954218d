"""The rows of a frame, arranged for the tasks that write them.

    no partitions, no key   as they are: no shuffle
    partitions              those of one partition together, large ones on several tasks
    a key                   in the order of partition and key, each key at one task

Law of this file: where rows go decides how many files there are, and not what is in them; but rows
of one key always meet at one task, side by side. What stands for a partition here is computed by
Spark, so that rows do not travel to Python twice.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from persist.partitioning import PartitionField, PartitionSpec, partition_values
from persist.table import TableDefinition

_PER_DAY = 86_400_000_000
"""Microseconds."""
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


def arranged(frame: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return the same rows, arranged for the table's layout."""
    have = [field for field in definition.spec.fields if field.column in frame.columns]
    partition = [partition_column(field, definition.schema) for field in have]
    if definition.keyed:
        order = [*partition, *(_key(name, definition.schema) for name in definition.primary_key)]
        return frame.repartitionByRange(*order).sortWithinPartitions(*order)
    if not partition:
        return frame
    # A hint and no repartition(): so Spark may put a partition that is too large on several tasks.
    # It takes columns alone; names that begin with "_" no column of a table has.
    made = {f"_partition_{place}": column for place, column in enumerate(partition)}
    names = list(made)
    return frame.withColumns(made).hint("rebalance", *names).drop(*names)


def named(name: str) -> Column:
    """Return the column of exactly this name, whatever characters are in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def _key(name: str, schema: pa.Schema) -> Column:
    """A column of the key; texts in the order of their bytes, whatever their collation says."""
    text = pa.types.is_string(schema.field(name).type)
    return named(name).cast("string") if text else named(name)


def partition_column(field: PartitionField, schema: pa.Schema) -> Column:
    """Return a column that is equal where the field's partition values are."""
    column, kind = named(field.column), schema.field(field.column).type
    if field.transform == "identity":
        return column
    if field.transform == "bucket":
        assert field.buckets is not None
        return _bucket(column, kind, field.buckets)
    if field.transform == "hour":
        return F.floor(_microseconds(column, kind) / F.lit(_PER_DAY // 24))
    days = F.unix_date(column) if pa.types.is_date32(kind) else _days(column, kind)
    if field.transform == "day":
        return days
    date = F.date_from_unix_date(days)
    year = F.year(date)
    return year if field.transform == "year" else year * F.lit(12) + F.month(date)


def _days(column: Column, kind: pa.DataType) -> Column:
    return F.floor(_microseconds(column, kind) / F.lit(_PER_DAY)).cast("int")


def _microseconds(column: Column, kind: pa.TimestampType) -> Column:
    """The timestamp as a number; no time zone of the session has a say in it."""
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
        # To pandas one missing whole number makes all of them floats. Neither these nor those that
        # are too large for Spark's integers have to be where the others of their bucket are.
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
