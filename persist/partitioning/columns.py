"""The columns that a partition spec computes: their types, and a partition's values in them. Pure.

    day(time)         time_day      date
    hour(time)        time_hour     string, 2026-11-21-15
    month(time)       time_month    string, 2026-11
    year(time)        time_year     int
    bucket(16, host)  host_bucket   int
    identity(zip)     zip_key       as zip; an empty string is null, whose folder it shares

They are the types and values that Spark reads from the folders' names
(``tests/spark/test_partition_by.py``).
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa

from persist.partitioning.spec import PartitionField, PartitionSpec, PartitionValue

_TRANSFORMED = {
    "day": pa.date32(),
    "hour": pa.string(),
    "month": pa.string(),
    "year": pa.int32(),
    "bucket": pa.int32(),
}


def partition_columns(spec: PartitionSpec, schema: pa.Schema) -> list[pa.Field]:
    """The columns of the spec, in folder order, computed from columns of this schema."""
    return [
        pa.field(field.name, _type_of(field, schema.field(field.column).type))
        for field in spec.fields
    ]


def _type_of(field: PartitionField, source: pa.DataType) -> pa.DataType:
    """The type of the partition column that this field computes from a ``source`` column."""
    if field.transform != "identity":
        return _TRANSFORMED[field.transform]
    # Spark parses the folder's name as a timestamp itself, in microseconds.
    in_ns = pa.types.is_timestamp(source) and source.unit == "ns"
    return pa.timestamp("us", source.tz) if in_ns else source


def partition_scalar(value: PartitionValue, kind: pa.DataType) -> pa.Scalar:
    """A partition value of the manifest in the partition column's type."""
    if value is None or value == "":
        return pa.scalar(None, kind)
    if pa.types.is_date32(kind):
        days = int(np.datetime64(str(value), "D").astype(np.int64))
        return pa.scalar(days, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        seconds, _, fraction = str(value).partition(".")
        # Fractions count up from the second, also before 1970, so truncating rounds down.
        ticks = np.datetime64(f"{seconds}.{fraction[:6] or '0'}", "us").astype(np.int64)
        return pa.scalar(int(ticks), pa.int64()).cast(kind)
    if pa.types.is_decimal128(kind):
        return pa.scalar(Decimal(str(value)), kind)
    return pa.scalar(value, kind)
