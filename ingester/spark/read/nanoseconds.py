"""Nanosecond timestamps of a table as Spark's timestamps.

Law of this file: Spark's timestamps have microseconds, so nanoseconds are rounded down (towards the
past, also before 1970), by all readers alike and at any depth. Whoever needs the nanoseconds
themselves keeps them in an integer column.

Every reader hands nanoseconds on as integers and this turns them into timestamps at the very end,
so a filter on such a column is not pushed into the files; one on a partition column is.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from ingester.spark.read.types import holds_nanoseconds, is_nanoseconds


def restored(column: Column, kind: pa.DataType) -> Column:
    """A column whose integers stand for the timestamps that ``kind``, the table's type, has."""
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
    """Integers that stand for nanoseconds as timestamps, for who has no Spark between."""
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
    # `div` rounds towards zero; a double has too few digits for floor().
    thousand = F.lit(1000).cast("bigint")
    below = F.when(nanoseconds % thousand < 0, F.lit(1)).otherwise(F.lit(0))
    microseconds = F.call_function("div", nanoseconds, thousand) - below
    if with_zone:
        return F.timestamp_micros(microseconds)
    # Not by way of an instant: that would ask the session's time zone twice.
    epoch = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
    return F.timestamp_add("MICROSECOND", microseconds, epoch)
