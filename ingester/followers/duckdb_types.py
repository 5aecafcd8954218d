"""The DuckDB type of each Arrow type that tables have, and the form that a batch is written in.

    bool                     BOOLEAN          string     VARCHAR
    int8 … int64             TINYINT … BIGINT             binary     BLOB
    uint8 … uint64           UTINYINT … UBIGINT           date32     DATE
    float, double            FLOAT, DOUBLE                decimal128(p, s)  DECIMAL(p,s)
    timestamp[us]            TIMESTAMP                    timestamp[us, tz] TIMESTAMP WITH TIME ZONE
    timestamp[ns]            TIMESTAMP_NS                 timestamp[ns, tz] TIMESTAMP_NS, in UTC
    list<T>                  T[]                          struct<…>  STRUCT(…)
    map<K, V>                MAP(K, V)

Law of this file: a value is the same afterwards, or is refused by name. DuckDB keeps no zone's
name: a time with a zone is the same moment. A type with nanoseconds and a zone came with DuckDB 2,
and a file that has it is read by no earlier one, so that such times are kept without the zone, in
UTC. Types are said in full and never left to DuckDB, whose choice differs from version to version.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ingester.client.errors import InvalidRequest

_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
}


def quoted(name: str) -> str:
    """The name as an identifier of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(column: str, kind: pa.DataType) -> str:
    """The DuckDB type of a column.

    Args:
        column: for the message of a refusal.

    Raises:
        InvalidRequest: DuckDB has no such type, or cannot hold a name in it.
    """
    t = pa.types
    _check_name(column, column)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if t.is_decimal128(kind) and kind.scale >= 0:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if t.is_timestamp(kind) and kind.unit == "us":
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if t.is_timestamp(kind) and kind.unit == "ns":
        return "TIMESTAMP_NS"
    if t.is_list(kind):
        return f"{duckdb_type(column, kind.value_type)}[]"
    if t.is_map(kind):
        key, item = (duckdb_type(column, side) for side in (kind.key_type, kind.item_type))
        return f"MAP({key}, {item})"
    if t.is_struct(kind) and kind.num_fields:
        return f"STRUCT({', '.join(_field(column, kind.field(n)) for n in range(kind.num_fields))})"
    raise InvalidRequest(
        f"column {column!r}: DuckDB has no counterpart for type {kind}; leave the column out"
        " (--columns)"
    )


def _field(column: str, field: pa.Field) -> str:
    _check_name(column, field.name)
    return f"{quoted(field.name)} {duckdb_type(column, field.type)}"


def _check_name(column: str, name: str) -> None:
    if "\0" in name:
        raise InvalidRequest(
            f"column {column!r}: DuckDB keeps no name with a NUL character; leave the column out"
            " (--columns)"
        )


def columns_sql(schema: pa.Schema) -> str:
    """The columns of a ``CREATE TABLE``: each name with its type.

    Raises:
        InvalidRequest: a column has no counterpart.
    """
    return ", ".join(f"{quoted(f.name)} {duckdb_type(f.name, f.type)}" for f in schema)


def written_form(schema: pa.Schema) -> pa.Schema:
    """The schema that batches are cast to before DuckDB reads them: no nanoseconds with a zone."""
    return pa.schema([pa.field(f.name, _written(f.type)) for f in schema])


def _written(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("ns")
    return _inside(kind, _written)


def _inside(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same type, with ``change`` made to what it consists of."""
    t = pa.types
    if t.is_list(kind):
        return pa.list_(change(kind.value_type))
    if t.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if t.is_struct(kind):
        return pa.struct(
            [pa.field(f.name, change(f.type)) for f in map(kind.field, range(kind.num_fields))]
        )
    return kind


def to_written(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """The batch's rows as DuckDB is to read them.

    DuckDB refuses a struct that begins in the middle of its memory, as a slice does, and earlier
    versions read the wrong rows of it: nested columns are copied.
    """
    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    table = table.cast(written_form(table.schema))
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    if not nested:
        return table
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, table.select(nested).schema) as writer:
            writer.write_table(table.select(nested))
        copied = pa.ipc.open_stream(sink.getvalue()).read_all()
    for name in nested:
        table = table.set_column(table.schema.get_field_index(name), name, copied.column(name))
    return table


def is_read_alike(schema: pa.Schema) -> bool:
    """Whether every DuckDB reads these types from Parquet as it takes them from Arrow.

    Earlier versions read nanoseconds with a zone as microseconds.
    """
    return not any(_has_zoned_ns(field.type) for field in schema)


def _has_zoned_ns(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns" and kind.tz)
    return any(_has_zoned_ns(kind.field(n).type) for n in range(kind.num_fields))
