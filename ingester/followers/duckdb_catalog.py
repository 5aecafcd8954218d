"""The layout of a DuckDB file of copies, and the DuckDB type of each Arrow type of a table.

    main.TABLE                      the view for readers: exactly the columns of the table
    _ingester.format                the number of this layout
    _ingester.holder                the token of the follower that writes; a newer one replaces it
    _ingester.copies                a row per copy: its table, and whether it is shown
    _ingester.parts                 the number of each partition
    _ingester.states                the states of followers by key
    _ingester."NS/TABLE/vN/M"       the rows of a copy, followed by ``_part`` and ``_at``

Functions run in the caller's transaction. Table names have no "/", so two copies never share rows;
M is unique in the file.

    bool                     BOOLEAN          string     VARCHAR
    int8 … int64             TINYINT … BIGINT             binary     BLOB
    uint8 … uint64           UTINYINT … UBIGINT           date32     DATE
    float, double            FLOAT, DOUBLE                decimal128(p, s)  DECIMAL(p,s)
    timestamp[us]            TIMESTAMP                    timestamp[us, tz] TIMESTAMP WITH TIME ZONE
    timestamp[ns]            TIMESTAMP_NS                 timestamp[ns, tz] TIMESTAMP_NS, in UTC
    list<T>                  T[]                          struct<…>  STRUCT(…)
    map<K, V>                MAP(K, V)

A value stays equal or is refused (``tests/followers/test_duckdb_types.py``). DuckDB does not store
the name of a zone: a time with a zone stays the same moment. DuckDB 2 introduced nanoseconds with a
zone, but no earlier version can open a file that has the type; such times are stored in UTC without
the zone. Types are always explicit, because DuckDB's own choice differs between versions.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ingester.client.errors import InvalidRequest
from ingester.followers.errors import FollowerError
from ingester.followers.sink import StateKey

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FORMAT = 1
SCHEMA = "_ingester"
_LAYOUT = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.format (number INTEGER);
CREATE TABLE {SCHEMA}.holder (token VARCHAR);
CREATE TABLE {SCHEMA}.copies (namespace VARCHAR, "table" VARCHAR, table_version BIGINT,
    number BIGINT, shown BOOLEAN);
CREATE TABLE {SCHEMA}.parts (copy BIGINT, number INTEGER, name VARCHAR);
CREATE TABLE {SCHEMA}.states (namespace VARCHAR, "table" VARCHAR, table_version BIGINT,
    partition VARCHAR, state BLOB);
"""
_KEY = 'namespace = ? AND "table" = ? AND table_version = ? AND partition = ?'


class CopyRow(NamedTuple):
    """A copy of a table; ``number`` is part of the name of its rows' table."""

    namespace: str
    table: str
    table_version: int
    number: int
    shown: bool

    @property
    def rows(self) -> str:
        """The SQL name of the table with its rows."""
        where = f"{self.namespace}/{self.table}/v{self.table_version}/{self.number}"
        return f"{SCHEMA}.{quoted(where)}"


def new_token() -> str:
    """A unique token."""
    return secrets.token_hex(16)


def claim(connection: DuckDBPyConnection, token: str) -> None:
    """Create the layout if necessary, and make the follower with this token the writer.

    Raises:
        InvalidRequest: A newer version created the file.
    """
    if not _has_layout(connection):
        connection.execute(_LAYOUT)
        connection.execute(f"INSERT INTO {SCHEMA}.format VALUES ({FORMAT})")
    found = connection.execute(f"SELECT number FROM {SCHEMA}.format").fetchall()
    if found != [(FORMAT,)]:
        raise InvalidRequest(
            f"the file has layout {found[0][0] if found else None} of copies and this version"
            f" reads {FORMAT}: follow into another file, or use the version that created it"
        )
    connection.execute(f"DELETE FROM {SCHEMA}.holder")
    connection.execute(f"INSERT INTO {SCHEMA}.holder VALUES (?)", [token])


def check_holder(connection: DuckDBPyConnection, token: str) -> None:
    """Raise :class:`FollowerError` if another follower has taken the file over.

    Its states have advanced since, so the rows of this one would be duplicates.
    """
    import duckdb

    try:
        found = connection.execute(f"SELECT token FROM {SCHEMA}.holder").fetchall()
    except duckdb.CatalogException as exc:
        message = "the file was replaced while it was followed into"
        raise FollowerError(message, code="taken_over") from exc
    if found != [(token,)]:
        raise FollowerError("another follower has taken the file over", code="taken_over")


def _has_layout(connection: DuckDBPyConnection) -> bool:
    found = connection.execute(
        "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name ="
        " current_database()",
        [SCHEMA],
    ).fetchall()
    return bool(found)


def copies_of(connection: DuckDBPyConnection, table: tuple[str, str, int]) -> list[CopyRow]:
    """The copies of a table version, the newest last: at most the shown one and a begun one."""
    found = connection.execute(
        f"SELECT * FROM {SCHEMA}.copies WHERE namespace = ?"
        ' AND "table" = ? AND table_version = ? ORDER BY number',
        list(table),
    ).fetchall()
    return [CopyRow(*row) for row in found]


def add_copy(connection: DuckDBPyConnection, table: tuple[str, str, int], shown: bool) -> CopyRow:
    """Add a copy. The caller creates the table for its rows."""
    last = connection.execute(f"SELECT coalesce(max(number), 0) FROM {SCHEMA}.copies").fetchall()
    copy = CopyRow(*table, last[0][0] + 1, shown)
    connection.execute(f"INSERT INTO {SCHEMA}.copies VALUES (?, ?, ?, ?, ?)", list(copy))
    return copy


def show_copy(connection: DuckDBPyConnection, copy: CopyRow) -> CopyRow:
    """Mark a copy as the one that readers see, and return it."""
    connection.execute(
        f'UPDATE {SCHEMA}.copies SET shown = false WHERE namespace = ? AND "table" = ?',
        [copy.namespace, copy.table],
    )
    connection.execute(f"UPDATE {SCHEMA}.copies SET shown = true WHERE number = ?", [copy.number])
    return copy._replace(shown=True)


def drop_copy(connection: DuckDBPyConnection, copy: CopyRow) -> None:
    """Remove a copy with its rows."""
    connection.execute(f"DROP TABLE IF EXISTS {copy.rows}")
    connection.execute(f"DELETE FROM {SCHEMA}.copies WHERE number = ?", [copy.number])
    connection.execute(f"DELETE FROM {SCHEMA}.parts WHERE copy = ?", [copy.number])


def check_view_name(connection: DuckDBPyConnection, namespace: str, table: str) -> None:
    """Raise :class:`InvalidRequest` if something else in the file has the view's name."""
    others = connection.execute(
        f'SELECT namespace, "table" FROM {SCHEMA}.copies WHERE lower("table") = lower(?)'
        ' AND (namespace, "table") IS DISTINCT FROM (?, ?)',
        [table, namespace, table],
    ).fetchall()
    for other in others:
        raise InvalidRequest(
            f"the file has a copy of {'/'.join(other)}, whose view is named {table!r} as well:"
            f" follow {namespace}/{table} into another file"
        )
    taken = connection.execute(
        "SELECT table_type FROM information_schema.tables WHERE table_catalog = current_database()"
        " AND table_schema = 'main' AND lower(table_name) = lower(?)",
        [table],
    ).fetchall()
    ours = connection.execute(
        f'SELECT 1 FROM {SCHEMA}.copies WHERE namespace = ? AND "table" = ?', [namespace, table]
    ).fetchall()
    if taken and (taken != [("VIEW",)] or not ours):
        kind = "view" if taken == [("VIEW",)] else "table"
        raise InvalidRequest(
            f"the file has a {kind} {table!r} that is not a copy of {namespace}/{table}: follow"
            " into another file, or rename it"
        )


def part_numbers(connection: DuckDBPyConnection, copy: CopyRow, names: list[str]) -> dict[str, int]:
    """The numbers of these partitions in a copy's rows; new ones are added."""
    found = connection.execute(
        f"SELECT name, number FROM {SCHEMA}.parts WHERE copy = ?", [copy.number]
    ).fetchall()
    numbers: dict[str, int] = dict(found)
    for name in names:
        if name not in numbers:
            numbers[name] = len(numbers) + 1
            connection.execute(
                f"INSERT INTO {SCHEMA}.parts VALUES (?, ?, ?)", [copy.number, numbers[name], name]
            )
    return numbers


def get_state(connection: DuckDBPyConnection, key: StateKey) -> bytes | None:
    """The state of a key, or None."""
    found = connection.execute(
        f"SELECT state FROM {SCHEMA}.states WHERE {_KEY}", list(key)
    ).fetchall()
    return bytes(found[0][0]) if found else None


def put_state(connection: DuckDBPyConnection, key: StateKey, state: bytes) -> None:
    """Replace the state of a key."""
    delete_state(connection, key)
    connection.execute(f"INSERT INTO {SCHEMA}.states VALUES (?, ?, ?, ?, ?)", [*key, state])


def delete_state(connection: DuckDBPyConnection, key: StateKey) -> None:
    """Delete the state of a key."""
    connection.execute(f"DELETE FROM {SCHEMA}.states WHERE {_KEY}", list(key))


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
    """The name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(column: str, kind: pa.DataType) -> str:
    """The DuckDB type of a column.

    Args:
        column: Named in the error.

    Raises:
        InvalidRequest: DuckDB has no such type, or cannot store a field's name.
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
        f"column {column!r}: DuckDB has no equivalent of type {kind}; leave the column out"
        " (--columns)"
    )


def _field(column: str, field: pa.Field) -> str:
    _check_name(column, field.name)
    return f"{quoted(field.name)} {duckdb_type(column, field.type)}"


def _check_name(column: str, name: str) -> None:
    if "\0" in name:
        raise InvalidRequest(
            f"column {column!r}: DuckDB does not allow a NUL character in a name; leave the column"
            " out (--columns)"
        )


def columns_sql(schema: pa.Schema) -> str:
    """The column list of a ``CREATE TABLE``.

    Raises:
        InvalidRequest: DuckDB has no equivalent of a column's type.
    """
    return ", ".join(f"{quoted(f.name)} {duckdb_type(f.name, f.type)}" for f in schema)


def written_form(schema: pa.Schema) -> pa.Schema:
    """The schema to which batches are cast for DuckDB: nanoseconds lose their zone."""
    return pa.schema([pa.field(f.name, _written(f.type)) for f in schema])


def _written(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("ns")
    if t.is_list(kind):
        return pa.list_(_written(kind.value_type))
    if t.is_map(kind):
        return pa.map_(_written(kind.key_type), _written(kind.item_type))
    if t.is_struct(kind):
        return pa.struct(
            [pa.field(f.name, _written(f.type)) for f in map(kind.field, range(kind.num_fields))]
        )
    return kind


def to_written(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows in the form that DuckDB reads.

    Nested columns are copied: DuckDB refuses a sliced struct, and earlier versions read the wrong
    rows of it.
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
    """Whether every DuckDB reads these types from Parquet as from Arrow.

    Earlier versions read nanoseconds with a zone as microseconds.
    """
    return not any(_has_zoned_ns(field.type) for field in schema)


def _has_zoned_ns(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns" and kind.tz)
    return any(_has_zoned_ns(kind.field(n).type) for n in range(kind.num_fields))
