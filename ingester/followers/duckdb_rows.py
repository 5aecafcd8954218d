"""The SQL on a copy's rows, and the view that readers see; each in the caller's transaction.

Law of this file: a row is found by its key or by its partition and group, never by an index. An
index would have to be read at each attach, and DuckDB's refuse a key that is deleted and inserted
in one transaction. What a copy has for a key is found by reading key columns, of which DuckDB skips
what cannot match. Columns go by name, and types are said before the first row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.client.errors import InvalidRequest
from ingester.followers.duckdb_catalog import CopyRow
from ingester.followers.duckdb_types import columns_sql, quoted, to_written
from ingester.followers.sink import AT, PART

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_HIDDEN = f"{quoted(PART)} INTEGER, {quoted(AT)} BIGINT"


def create(connection: DuckDBPyConnection, copy: CopyRow, schema: pa.Schema) -> None:
    """Make a copy's table, without rows."""
    connection.execute(f"CREATE TABLE {copy.rows} ({columns_sql(schema)}, {_HIDDEN})")


def columns_of(connection: DuckDBPyConnection, copy: CopyRow) -> list[str]:
    """The names of the user's columns that a copy has."""
    found = connection.execute(f"SELECT * FROM {copy.rows} LIMIT 0").description
    return [name for name, *_ in found or () if name not in (PART, AT)]


def add_columns(connection: DuckDBPyConnection, copy: CopyRow, new: pa.Schema) -> None:
    """Add columns, null in the rows that are there."""
    for field in new:
        connection.execute(f"ALTER TABLE {copy.rows} ADD COLUMN {columns_sql(pa.schema([field]))}")


def show(connection: DuckDBPyConnection, copy: CopyRow, columns: Sequence[str]) -> None:
    """Let the view named after the table have these columns of this copy."""
    listed = ", ".join(map(quoted, columns))
    view = f"main.{quoted(copy.table)}"
    connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {listed} FROM {copy.rows}")


def insert(connection: DuckDBPyConnection, copy: CopyRow, rows: pa.Table) -> None:
    """Add rows, whose hidden columns are there as numbers."""
    written = to_written(rows)
    with _registered(connection, written), _maps_named(written):
        connection.execute(f"INSERT INTO {copy.rows} BY NAME SELECT * FROM sent")


def delete_keys(connection: DuckDBPyConnection, copy: CopyRow, keys: pa.Table) -> None:
    """Remove the rows of these keys: those whose values in all columns of ``keys`` are the same."""
    with _registered(connection, to_written(keys)):
        _delete(connection, copy, keys.column_names, "sent")


def take_back(
    connection: DuckDBPyConnection, copy: CopyRow, part: int, groups: Sequence[int]
) -> None:
    """Remove a partition's rows of these groups."""
    connection.execute(
        f"DELETE FROM {copy.rows} WHERE {quoted(PART)} = ? AND list_contains(?, {quoted(AT)})",
        [part, list(groups)],
    )


def take_back_all(
    connection: DuckDBPyConnection, copy: CopyRow, part: int, keep: Sequence[int]
) -> None:
    """Remove a partition's rows of all groups but these."""
    connection.execute(
        f"DELETE FROM {copy.rows} WHERE {quoted(PART)} = ? AND NOT list_contains(?, {quoted(AT)})",
        [part, list(keep)],
    )


def insert_files(
    connection: DuckDBPyConnection,
    copy: CopyRow,
    files: pa.Table,
    columns: Sequence[str],
    key: Sequence[str],
) -> None:
    """Add all rows of Parquet files, as group 0.

    Args:
        files: columns ``path`` and ``part``, the number of its partition.
        columns: those to read; each of the files has them all.
        key: of a keyed table, whose rows replace others; else empty.
    """
    paths = ", ".join("'" + path.replace("'", "''") + "'" for path in files["path"].to_pylist())
    # A folder's name is no column: what a file has is what counts.
    source = f"read_parquet([{paths}], hive_partitioning = false, filename = '_file')"
    listed = ", ".join(f"f.{quoted(name)}" for name in columns)
    with _registered(connection, files):
        if key and connection.execute(f"SELECT 1 FROM {copy.rows} LIMIT 1").fetchall():
            _delete(connection, copy, key, source)
        connection.execute(
            f"INSERT INTO {copy.rows} BY NAME SELECT {listed}, sent.part AS {quoted(PART)},"
            f" 0::BIGINT AS {quoted(AT)} FROM {source} f JOIN sent ON f._file = sent.path"
        )


def _delete(
    connection: DuckDBPyConnection, copy: CopyRow, columns: Sequence[str], source: str
) -> None:
    same = " AND ".join(f"r.{quoted(name)} = s.{quoted(name)}" for name in columns)
    connection.execute(f"DELETE FROM {copy.rows} r USING {source} s WHERE {same}")


@contextlib.contextmanager
def _maps_named(rows: pa.Table) -> Iterator[None]:
    """Name the column of a map that has a key twice: DuckDB has no such maps, and names none."""
    import duckdb

    try:
        yield
    except duckdb.InvalidInputException as exc:
        if "duplicate key" not in str(exc):
            raise
        raise InvalidRequest(
            f"column {_with_equal_keys(rows)!r}: a map has a key twice, which no map of DuckDB"
            " has; leave the column out (--columns)"
        ) from exc


def _with_equal_keys(rows: pa.Table) -> str:
    import duckdb

    for name in rows.column_names:
        with duckdb.connect() as connection, contextlib.suppress(duckdb.InvalidInputException):
            connection.register("sent", rows.select([name]))
            connection.execute("SELECT * FROM sent").fetchall()
            continue
        return str(name)
    return "?"


class _registered:
    """The Arrow table under the name ``sent``, as long as the block is open."""

    def __init__(self, connection: DuckDBPyConnection, rows: pa.Table) -> None:
        self._connection, self._rows = connection, rows

    def __enter__(self) -> None:
        self._connection.register("sent", self._rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Once a transaction has failed this would fail, too, and hide why.
        if kind is None:
            self._connection.unregister("sent")
