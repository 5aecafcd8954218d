"""Rows of any age in the columns of one schema.

Law of this file: a column that the rows lack is null, a type that differs is cast (the types of a
table never change; files only lack what Parquet has no type for), and order follows the schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ingester.errors import InvalidRequest


def align_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema's columns; no copy where it has them already."""
    have = batch.schema
    if have.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = have.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def align_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All batches as one table with the schema's columns."""
    return pa.Table.from_batches([align_batch(batch, schema) for batch in batches], schema)


def projected(schema: pa.Schema, columns: list[str] | None, marks: bool) -> pa.Schema:
    """The answer's columns; with ``marks`` also ``_op``."""
    if columns is None:
        if not marks:
            return schema
        fields = list(schema)
    else:
        unknown = [name for name in columns if schema.get_field_index(name) < 0]
        if unknown:
            raise InvalidRequest(f"unknown column {unknown[0]!r}; the table has {schema.names}")
        fields = [schema.field(name) for name in columns]
    if marks:
        # A delete has its key alone.
        fields = [field.with_nullable(True) for field in fields]
        fields.append(pa.field("_op", pa.string(), nullable=False))
    return pa.schema(fields)
