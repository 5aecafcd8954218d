"""The SQL of the views that stand for tables. Pure.

a table          files UNION ALL buffered rows
with a key       files without the keys that changed, UNION ALL the newest rows of those keys
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingester.sql.wire import NativeFiles, TableGiven

CATALOG = "ingester"
OPERATION = "_op"


def quoted(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Return a text literal."""
    return "'" + value.replace("'", "''") + "'"


def source_name(source: int) -> str:
    """Return the name under which a source is registered."""
    return f"__source_{source}"


def create_view(table: TableGiven, types: Mapping[str, str]) -> str:
    """Return the statement that creates a table's view.

    Args:
        types: the SQL type of each column, in order.
    """
    name = f"{quoted(CATALOG)}.{quoted(table.namespace)}.{quoted(table.name)}"
    return f"CREATE VIEW {name} AS {_rows(table, types)}"


def _rows(table: TableGiven, types: Mapping[str, str]) -> str:
    columns = ", ".join(map(quoted, types))
    parts = [_native(files, types) for files in table.files]
    parts += [
        f"SELECT {columns} FROM {source_name(source)}" for source in (*table.rows, *table.copies)
    ]
    if table.changes and parts:
        parts = [_unchanged(" UNION ALL ".join(parts), table.key, columns, table.changes)]
    parts += [
        f"SELECT {columns} FROM {source_name(source)} WHERE {OPERATION} = 'upsert'"
        for source in table.changes
    ]
    return " UNION ALL ".join(parts) or _nothing(types)


def _native(files: NativeFiles, types: Mapping[str, str]) -> str:
    columns = ", ".join(_column(name, type_, files) for name, type_ in types.items())
    paths = ", ".join(map(text, files.paths))
    # Folders are named like `time_day=…`, which are no columns of the table.
    return f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)"


def _column(name: str, type_: str, files: NativeFiles) -> str:
    if name in files.missing:
        return f"CAST(NULL AS {type_}) AS {quoted(name)}"
    if name in files.narrower:
        return f"CAST({quoted(name)} AS {type_}) AS {quoted(name)}"
    return quoted(name)


def _unchanged(rows: str, key: Sequence[str], columns: str, changes: Sequence[int]) -> str:
    keys = ", ".join(map(quoted, key))
    changed = " UNION ALL ".join(f"SELECT {keys} FROM {source_name(one)}" for one in changes)
    return f"SELECT {columns} FROM ({rows}) ANTI JOIN ({changed}) USING ({keys})"


def _nothing(types: Mapping[str, str]) -> str:
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {quoted(n)}" for n, type_ in types.items())
    return f"SELECT {columns} WHERE false"
