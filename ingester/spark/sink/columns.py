"""A DataFrame's columns as the columns of a table that it is written to.

Law of this file: nothing is guessed and nothing is lost. Columns go by their names; one that the
table has and the frame lacks is null; one that the table lacks is refused, unless the partition
spec makes it anyway. A value that the table's type cannot hold is refused with its column.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from ingester.spark.errors import WriteRefused
from ingester.spark.read.types import seen_type
from ingester.spark.versions import arrow_schema
from persist.parquet.sparse_rows import rows_alone
from persist.table import TableDefinition


def check_columns(schema: StructType, definition: TableDefinition) -> None:
    """Return if rows of this schema can be written to the table.

    Raises:
        WriteRefused: A column that the table lacks, or whose type it does not take.
    """
    table = definition.schema
    given = arrow_schema(schema)
    for field in given:
        index = table.get_field_index(field.name)
        if index < 0 and field.name in definition.spec.names:
            continue
        if index < 0:
            raise WriteRefused(
                f"the table has no column {field.name!r}; it has {', '.join(table.names)}"
            )
        kind = table.field(index).type
        if not _takes(kind, field.type):
            raise WriteRefused(
                f"column {field.name!r} is {kind} in the table, and {field.type} in the frame"
            )
    missing = [name for name in definition.primary_key if given.get_field_index(name) < 0]
    if missing:
        raise WriteRefused(f"the frame has no column {missing[0]!r}, which is in the primary key")


def table_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the table's types, with those of its columns that have a value.

    Raises:
        WriteRefused: A value that its column cannot hold.
    """
    arrays, fields = [], []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            continue
        column = batch.column(index)
        if column.null_count == len(column):
            continue
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as exc:
            raise WriteRefused(f"column {field.name!r}: {exc}") from exc
        fields.append(field)
    if not fields:
        return rows_alone(batch.num_rows)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _takes(kind: pa.DataType, given: pa.DataType) -> bool:
    """True where values can be brought to the table's type one by one, none of them changed."""
    seen = seen_type(kind)
    if _same(seen, given) or pa.types.is_null(given):
        return True
    t = pa.types
    narrower: Sequence[bool] = (
        t.is_integer(kind) and t.is_integer(given),
        t.is_integer(kind) and t.is_decimal(given) and given.scale == 0,
        t.is_float64(kind) and t.is_float32(given),
        t.is_decimal(kind) and t.is_decimal(given) and given.scale <= kind.scale,
    )
    return any(narrower)


def _same(kind: pa.DataType, given: pa.DataType) -> bool:
    """Equal, whatever the fields of lists are called, and however long texts may be."""
    t = pa.types
    if t.is_list(kind):
        return (t.is_list(given) or t.is_large_list(given)) and _same(
            kind.value_type, given.value_type
        )
    if t.is_map(kind):
        return (
            t.is_map(given)
            and _same(kind.key_type, given.key_type)
            and _same(kind.item_type, given.item_type)
        )
    if t.is_struct(kind):
        if not t.is_struct(given) or kind.num_fields != given.num_fields:
            return False
        pairs = [(kind.field(i), given.field(i)) for i in range(kind.num_fields)]
        return all(mine.name == its.name and _same(mine.type, its.type) for mine, its in pairs)
    if t.is_string(kind):
        return bool(t.is_string(given) or t.is_large_string(given))
    if t.is_binary(kind):
        return bool(t.is_binary(given) or t.is_large_binary(given))
    return bool(kind == given)
