"""The columns of a table as Spark sees them: its own, then those of its partition spec.

A partition column has the same type and values whether Spark reads the folder's name, pyarrow reads
the manifest, or this module computes it from a buffered row (``tests/spark/test_partition_by.py``).

    day(time)         time_day      date
    hour(time)        time_hour     string, 2026-11-21-15
    month(time)       time_month    string, 2026-11
    year(time)        time_year     int
    bucket(16, host)  host_bucket   int
    identity(zip)     zip_key       as zip; an empty string is null, whose folder it shares
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa

from ingester.spark.errors import RequestRefused
from ingester.spark.read.types import carrier, is_nanoseconds
from persist.parquet.sparse_rows import Nulls
from persist.partitioning import (
    PartitionField,
    PartitionValue,
    PartitionValues,
    partition_values,
    with_columns,
)
from persist.table import TableDefinition

OPERATION = "_op"
"""The column of a keyed table's buffered or written rows: ``upsert`` or ``delete``."""
_TRANSFORMED = {
    "day": pa.date32(),
    "hour": pa.string(),
    "month": pa.string(),
    "year": pa.int32(),
    "bucket": pa.int32(),
}


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
        schema = self.definition.schema
        return [
            pa.field(field.name, partition_type(field, schema.field(field.column).type))
            for field in self.definition.spec.fields
        ]

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


def partition_type(field: PartitionField, source: pa.DataType) -> pa.DataType:
    """The type of the partition column that this field computes from a ``source`` column."""
    if field.transform != "identity":
        return _TRANSFORMED[field.transform]
    # Spark parses the folder's name as a timestamp itself, in microseconds.
    return pa.timestamp("us", source.tz and "UTC") if is_nanoseconds(source) else carrier(source)


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
