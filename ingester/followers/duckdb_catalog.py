"""What a DuckDB file of copies has beside the rows: who writes, the copies, partitions and states.

    main.TABLE                      the view for readers: the columns of the table, no others
    _ingester.format                the number of this layout
    _ingester.holder                the follower that writes: a newer one takes its place
    _ingester.copies                a row for each copy: of which table, and whether it is shown
    _ingester.parts                 partitions by number, as rows name them
    _ingester.states                the states of followers by key
    _ingester."NS/TABLE/vN/M"       the rows of a copy, with ``_part`` and ``_at`` behind them

Law of this file: every function runs in the caller's transaction and keeps nothing beside the file.
Names of tables hold no "/", so that two copies never share rows; M is counted in the whole file.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from ingester.client.errors import InvalidRequest
from ingester.followers.duckdb_types import quoted
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
    """A copy of a table: the number that its rows' table has, and whether readers see it."""

    namespace: str
    table: str
    table_version: int
    number: int
    shown: bool

    @property
    def rows(self) -> str:
        """The table that has its rows, as SQL names it."""
        where = f"{self.namespace}/{self.table}/v{self.table_version}/{self.number}"
        return f"{SCHEMA}.{quoted(where)}"


def new_token() -> str:
    """A token that no other follower has."""
    return secrets.token_hex(16)


def claim(connection: DuckDBPyConnection, token: str) -> None:
    """Make the layout unless it is there, and let the follower of this token be the one to write.

    Raises:
        InvalidRequest: the file was laid out by a newer version.
    """
    if not _has_layout(connection):
        connection.execute(_LAYOUT)
        connection.execute(f"INSERT INTO {SCHEMA}.format VALUES ({FORMAT})")
    found = connection.execute(f"SELECT number FROM {SCHEMA}.format").fetchall()
    if found != [(FORMAT,)]:
        raise InvalidRequest(
            f"the file has layout {found[0][0] if found else None} of copies, and this version"
            f" knows {FORMAT}: follow into another file, or with the version that made it"
        )
    connection.execute(f"DELETE FROM {SCHEMA}.holder")
    connection.execute(f"INSERT INTO {SCHEMA}.holder VALUES (?)", [token])


def check_holder(connection: DuckDBPyConnection, token: str) -> None:
    """Raise :class:`FollowerError` where another follower has taken the file over.

    Its states have gone on since: what this one would add is there already.
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
    """The copies of a version of a table, the newest last; the one that is shown, and one begun."""
    found = connection.execute(
        f"SELECT * FROM {SCHEMA}.copies WHERE namespace = ?"
        ' AND "table" = ? AND table_version = ? ORDER BY number',
        list(table),
    ).fetchall()
    return [CopyRow(*row) for row in found]


def add_copy(connection: DuckDBPyConnection, table: tuple[str, str, int], shown: bool) -> CopyRow:
    """A new copy's row; its rows' table is the caller's to make."""
    last = connection.execute(f"SELECT coalesce(max(number), 0) FROM {SCHEMA}.copies").fetchall()
    copy = CopyRow(*table, last[0][0] + 1, shown)
    connection.execute(f"INSERT INTO {SCHEMA}.copies VALUES (?, ?, ?, ?, ?)", list(copy))
    return copy


def show_copy(connection: DuckDBPyConnection, copy: CopyRow) -> CopyRow:
    """The copy, as the one of the table that readers see."""
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
    """Raise :class:`InvalidRequest` where the view's name is something else's in the file."""
    others = connection.execute(
        f'SELECT namespace, "table" FROM {SCHEMA}.copies WHERE lower("table") = lower(?)'
        ' AND (namespace, "table") IS DISTINCT FROM (?, ?)',
        [table, namespace, table],
    ).fetchall()
    for other in others:
        raise InvalidRequest(
            f"the file has a copy of {'/'.join(other)}, whose view has the name {table!r}, too:"
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
            f"the file has a {kind} {table!r} that is no copy of {namespace}/{table}: follow into"
            " another file, or rename it"
        )


def part_numbers(connection: DuckDBPyConnection, copy: CopyRow, names: list[str]) -> dict[str, int]:
    """The numbers by which rows of a copy name these partitions; new ones are added."""
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
    """The state of a key; None where there is none."""
    found = connection.execute(
        f"SELECT state FROM {SCHEMA}.states WHERE {_KEY}", list(key)
    ).fetchall()
    return bytes(found[0][0]) if found else None


def put_state(connection: DuckDBPyConnection, key: StateKey, state: bytes) -> None:
    """Keep a state in the place of the one before."""
    delete_state(connection, key)
    connection.execute(f"INSERT INTO {SCHEMA}.states VALUES (?, ?, ?, ?, ?)", [*key, state])


def delete_state(connection: DuckDBPyConnection, key: StateKey) -> None:
    """Forget a state."""
    connection.execute(f"DELETE FROM {SCHEMA}.states WHERE {_KEY}", list(key))
