"""The types of an answer: as Arrow, without dictionaries, and what Arrow has no place for."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ingester.sql.worker.statement import BadStatement
from ingester.sql.worker.views import quoted


def described_schema(
    connection: duckdb.DuckDBPyConnection, relation: duckdb.DuckDBPyRelation
) -> pa.Schema:
    """Return the schema of an answer without computing it."""
    columns = ", ".join(
        f"CAST(NULL AS {type_}) AS {quoted(name)}"
        for name, type_ in zip(relation.columns, map(str, relation.types), strict=True)
    )
    return connection.sql(f"SELECT {columns} WHERE false").to_arrow_table().schema


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema with dictionaries decoded: an ENUM is a text, in nested types too."""
    return pa.schema(map(_plain_field, schema))


def _plain_field(field: pa.Field) -> pa.Field:
    kind, t = field.type, pa.types
    if t.is_dictionary(kind):
        return field.with_type(kind.value_type)
    if t.is_list(kind):
        return field.with_type(pa.list_(_plain_field(kind.value_field)))
    if t.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_plain_field(kind.value_field), kind.list_size))
    if t.is_struct(kind):
        inner = [kind.field(place) for place in range(kind.num_fields)]
        return field.with_type(pa.struct(map(_plain_field, inner)))
    if t.is_map(kind):
        return field.with_type(pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field)))
    return field


def check_types(relation: duckdb.DuckDBPyRelation) -> None:
    """Refuse times of day with a zone, whose offset Arrow has no place for.

    Raises:
        BadStatement
    """
    for name, type_ in zip(relation.columns, map(str, relation.types), strict=True):
        if "TIME WITH TIME ZONE" in type_:
            raise BadStatement(
                f"column {name!r} has the type {type_}, and Arrow's times have no zone: cast it to"
                " VARCHAR or TIME"
            )


def check_wide(relation: duckdb.DuckDBPyRelation, batch: pa.RecordBatch) -> None:
    """Refuse integers of 39 digits: DuckDB hands over their 128 bits as a decimal of 38.

    Raises:
        BadStatement
    """
    for place, type_ in enumerate(map(str, relation.types)):
        if "HUGEINT" not in type_:
            continue
        column = batch.column(place)
        try:
            column.validate(full=True)
            # From 2^127 an unsigned one becomes negative; looked for in plain columns only.
            is_right = "UHUGEINT" not in type_ or (
                type_ == "UHUGEINT" and not pc.any(pc.less(column, 0)).as_py()
            )
        except pa.ArrowInvalid:
            is_right = False
        if not is_right:
            raise BadStatement(
                f"column {relation.columns[place]!r} of type {type_} may have integers of 39"
                " digits, and Arrow's decimals have 38: cast it to VARCHAR or DOUBLE"
            )
