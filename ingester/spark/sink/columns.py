"""A DataFrame's columns as the columns of the table it is written to.

Columns are matched by name. A column that the frame lacks is null; one that the table lacks is
refused, unless the partition spec computes it. A value that the table's type cannot hold is refused
with its column's name (``tests/spark/test_refusals.py``).
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from ingester.schema.types import takes
from ingester.spark.errors import WriteRefused
from ingester.spark.versions import arrow_schema
from persist.parquet.sparse_rows import rows_alone
from persist.table import TableDefinition


def check_columns(schema: StructType, definition: TableDefinition) -> None:
    """Check that rows of this schema can be written to the table.

    Raises:
        WriteRefused: The table lacks a column, or does not accept its type.
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
        if not takes(kind, field.type):
            raise WriteRefused(
                f"column {field.name!r} is {kind} in the table, but {field.type} in the frame"
            )
    missing = [name for name in definition.primary_key if given.get_field_index(name) < 0]
    if missing:
        raise WriteRefused(f"the frame has no column {missing[0]!r}, which is in the primary key")


def table_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the table's types, without columns that are all null.

    Raises:
        WriteRefused: A column cannot hold a value.
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
