"""Numbers of columns, by which Iceberg knows them. Pure.

A table's columns are only ever appended, so a column's number follows from the schema: columns are
numbered in order, each before what is inside it, and a number never changes. A table that is
defined again gets other numbers, above all earlier ones.
"""

from __future__ import annotations

from itertools import count

import pyarrow as pa

from persist.table import UNNUMBERED

KEY = b"PARQUET:field_id"
"""The metadata of an Arrow field that pyarrow writes to Parquet as the column's id."""
PER_SCHEMA = 1000
"""Schema ids rise by 100 when a table is defined again, which leaves room for 100,000 numbers."""
HIGHEST = 2_147_000_000
"""About the highest number that Iceberg leaves to columns."""


def first_field_id(first_schema_id: int) -> int:
    """The number of the first column of a table whose schemas begin at this id.

    Numbers begin again after about 20,000 definitions, when no file of the first ones exists.
    """
    return 1 + (first_schema_id - 1) * PER_SCHEMA % (HIGHEST - 1_000_000)


def with_field_ids(schema: pa.Schema, first_schema_id: int) -> pa.Schema:
    """The schema, with the number of each field, at any depth, in its metadata.

    Args:
        first_schema_id: ``TableDefinition.first_schema_id``; with :data:`persist.table.UNNUMBERED`
            the schema is returned as it is.
    """
    if first_schema_id == UNNUMBERED:
        return schema
    numbers = count(first_field_id(first_schema_id))

    def numbered(field: pa.Field) -> pa.Field:
        field = field.with_metadata({**(field.metadata or {}), KEY: str(next(numbers)).encode()})
        # Most types are plain, and tables may have 10,000 columns.
        return field.with_type(inside(field.type)) if field.type.num_fields else field

    def inside(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([numbered(kind.field(i)) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return pa.map_(numbered(kind.key_field), numbered(kind.item_field))
        if pa.types.is_list(kind):
            return pa.list_(numbered(kind.value_field))
        return kind

    return pa.schema([numbered(field) for field in schema], schema.metadata)


def field_id(field: pa.Field) -> int:
    """The number in a field's metadata. ``KeyError`` if it has none."""
    return int((field.metadata or {})[KEY])
