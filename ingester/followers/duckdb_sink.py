"""Copies in a DuckDB file: rows and states in one transaction.

    transaction ─▶ file attached ─▶ still ours? ─▶ put, delete, states ─▶ COMMIT ─▶ file free

The file is the only truth: the sink remembers what it read or wrote in the open transaction and
forgets it when one fails. Rows are found by key or by partition and group, without an index: an
index would be read at each attach, and DuckDB's indexes refuse a key that is deleted and inserted
in one transaction. DuckDB skips row groups whose key ranges cannot match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingester.client.errors import InvalidRequest
from ingester.followers import duckdb_catalog as catalog
from ingester.followers.duckdb_catalog import (
    CopyRow,
    columns_sql,
    is_read_alike,
    quoted,
    to_written,
)
from ingester.followers.duckdb_file import DuckDBFile, full_disk_translated
from ingester.followers.duckdb_times import check_times, may_have_unfit_times
from ingester.followers.errors import FollowerError
from ingester.followers.sink import (
    AT,
    FROM_FILES,
    PART,
    CheckpointStore,
    FileRows,
    FollowedTable,
    FollowerSink,
    Rows,
    Run,
    StateKey,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_GLOB = frozenset("*?[")
"""Characters that make DuckDB read a path as a pattern."""


_HIDDEN = f"{quoted(PART)} INTEGER, {quoted(AT)} BIGINT"


class DuckDBDatabase:
    """A DuckDB file of copies, shared by the sinks of its tables.

    Args:
        path: The file; it is created if necessary.
        locked: Called with the holder of the file, once per wait.

    Raises:
        InvalidRequest: The file is not a DuckDB file, is not writable, or has a newer layout.
    """

    def __init__(self, path: Path, locked: Callable[[str], None] = lambda holder: None) -> None:
        self.file = DuckDBFile(path, locked)
        self._token = catalog.new_token()
        try:
            with self.file.transaction() as connection:
                catalog.claim(connection, self._token)
        except BaseException:
            self.file.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DuckDBPyConnection]:
        """A connection in a transaction; refused if another follower has taken the file over."""
        with self.file.transaction() as connection:
            catalog.check_holder(connection, self._token)
            yield connection

    def sink(self, table: FollowedTable) -> DuckDBSink:
        """The sink of a table: the factory for a follower."""
        return DuckDBSink(self, table)

    def close(self) -> None:
        """Release the file."""
        self.file.close()


class DuckDBSink(FollowerSink):
    """Keeps the copy of one table in a DuckDB file.

    Raises:
        InvalidRequest: DuckDB has no equivalent of a column's type, or the view's name is taken.
    """

    version = 1
    """Incremented when existing copies have to be rebuilt."""

    def __init__(self, database: DuckDBDatabase, table: FollowedTable) -> None:
        columns_sql(table.schema)  # refuses types before anything is created
        self._database = database
        self._table = table
        self._identity = (table.namespace, table.table, table.table_version)
        self._open: DuckDBPyConnection | None = None
        self._copies: list[CopyRow] | None = None
        self._columns: list[str] | None = None
        self._parts: dict[str, int] = {}
        self._from_files_alone = False
        with database.transaction() as connection:
            catalog.check_view_name(connection, table.namespace, table.table)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See :class:`ingester.followers.sink.Transactional`."""
        try:
            with self._database.transaction() as connection:
                self._open = connection
                yield
        except BaseException:
            self._forget()
            raise
        finally:
            self._open = None

    def checkpoint_store(self) -> CheckpointStore:
        """The file's own states."""
        return _DuckDBStates(self)

    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy, shown or beside the shown one."""
        # First: the view of a dropped copy, which is replaced below, would count as another's.
        catalog.check_view_name(self.connection, self._table.namespace, self._table.table)
        for copy in self._known():
            if is_current or not copy.shown:
                catalog.drop_copy(self.connection, copy)
        copy = catalog.add_copy(self.connection, self._identity, is_current)
        _create_rows(self.connection, copy, self._table.schema)
        if is_current:
            _show_view(self.connection, copy, self._table.schema.names)
        self._forget()
        self._from_files_alone = True

    def on_end_version(self, current: bool) -> None:
        """Show the begun copy in place of any other, or drop it."""
        newest = self._newest()
        if not current:
            if not newest.shown:
                catalog.drop_copy(self.connection, newest)
                self._forget()
            return
        for copy in self._known()[:-1]:
            catalog.drop_copy(self.connection, copy)
        catalog.show_copy(self.connection, newest)
        _show_view(self.connection, newest, _columns_of(self.connection, newest))
        self._forget()

    def on_recovery(self) -> None:
        """Recreate the view, which a user may have dropped."""
        for copy in self._known():
            if copy.shown:
                _show_view(self.connection, copy, _columns_of(self.connection, copy))

    def put(self, rows: Rows) -> None:
        """Add rows; in a keyed table they replace rows with the same key."""
        copy = self._fitting(rows.batch.schema)
        self._from_files_alone = False
        if self._table.keyed:
            keys = rows.batch.select(self._table.primary_key)
            _delete_keys(self.connection, copy, keys)
        # Large inserts reach the disk before the commit.
        with full_disk_translated(self._database.file.path):
            _insert(self.connection, copy, self._numbered(rows))

    def delete(self, keys: pa.Table) -> None:
        """Remove the rows of these keys."""
        _delete_keys(self.connection, self._newest(), keys.select(self._table.primary_key))

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""
        _take_back(self.connection, self._newest(), self._part(part), "", groups)

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition except those of the groups to keep."""
        _take_back(self.connection, self._newest(), self._part(part), "NOT", keep)

    def drop_version(self, table_version: int) -> None:
        """Remove the copies of another version of the table."""
        of = (self._table.namespace, self._table.table, table_version)
        for copy in catalog.copies_of(self.connection, of):
            catalog.drop_copy(self.connection, copy)

    def put_files(self, files: Sequence[FileRows]) -> None:
        """Add the rows of files. DuckDB reads them itself if it reads the types alike."""
        alike = is_read_alike(self._table.schema)
        groups: dict[tuple[str, ...], list[FileRows]] = {}
        for file in files:
            if alike and not _GLOB & set(file.path) and not may_have_unfit_times(file.path):
                groups.setdefault(file.columns, []).append(file)
            else:
                self._put_read(file)
        # Two files of one version never share a key.
        key = () if self._from_files_alone else self._table.primary_key
        for columns, group in groups.items():
            copy = self._fitting(self._schema_of(group[0], columns))
            parts = [self._part(file.part) for file in group]
            paths = pa.table(
                {"path": [file.path for file in group], "part": pa.array(parts, pa.int32())}
            )
            with full_disk_translated(self._database.file.path):
                _insert_files(self.connection, copy, paths, columns, key)

    @property
    def connection(self) -> DuckDBPyConnection:
        """The connection of the open transaction."""
        if self._open is None:
            raise FollowerError("a DuckDB sink was called outside of a transaction")
        return self._open

    def _schema_of(self, file: FileRows, columns: Sequence[str]) -> pa.Schema:
        """The types of columns: the table's, and the file's for columns added since."""
        ours = self._table.schema
        late = [name for name in columns if name not in ours.names]
        there = pq.read_schema(file.path) if late else ours
        return pa.schema((there if name in late else ours).field(name) for name in columns)

    def _put_read(self, file: FileRows) -> None:
        wanted = self._schema_of(file, file.columns)
        with pq.ParquetFile(file.path) as reader:
            for batch in reader.iter_batches(columns=wanted.names):
                table = pa.Table.from_batches([batch]).select(wanted.names).cast(wanted)
                self.put(Rows(table, (Run(file.part, FROM_FILES, batch.num_rows),)))

    def _numbered(self, rows: Rows) -> pa.Table:
        """The rows with their hidden columns; partitions are numbers."""
        tagged = rows.tagged()
        place = tagged.schema.get_field_index(PART)
        part = tagged.column(place).combine_chunks()
        numbers = pa.array([self._part(name) for name in part.dictionary.to_pylist()], pa.int32())
        return tagged.set_column(place, PART, pc.take(numbers, part.indices))

    def _part(self, name: str) -> int:
        if name not in self._parts:
            self._parts = catalog.part_numbers(self.connection, self._newest(), [name])
        return self._parts[name]

    def _fitting(self, schema: pa.Schema) -> CopyRow:
        """The copy that is written to, after adding missing columns."""
        copy = self._newest()
        if self._columns is None:
            self._columns = _columns_of(self.connection, copy)
        known = set(self._columns)
        new = pa.schema(field for field in schema if field.name not in known)
        if len(new):
            _add_columns(self.connection, copy, new)
            self._columns += new.names
            if copy.shown:
                _show_view(self.connection, copy, self._columns)
        return copy

    def _newest(self) -> CopyRow:
        """The copy that is written to: the newest."""
        if not self._known():
            raise FollowerError("a DuckDB sink was given rows before a version was begun")
        return self._known()[-1]

    def _known(self) -> list[CopyRow]:
        if self._copies is None:
            self._copies = catalog.copies_of(self.connection, self._identity)
        return self._copies

    def _forget(self) -> None:
        self._copies, self._columns, self._parts = None, None, {}
        self._from_files_alone = False


class _DuckDBStates:
    """The states in the file, within the sink's open transaction."""

    def __init__(self, sink: DuckDBSink) -> None:
        self._sink = sink

    def get(self, key: StateKey) -> bytes | None:
        return catalog.get_state(self._sink.connection, key)

    def put(self, key: StateKey, state: bytes) -> None:
        catalog.put_state(self._sink.connection, key, state)

    def delete(self, key: StateKey) -> None:
        catalog.delete_state(self._sink.connection, key)


def _create_rows(connection: DuckDBPyConnection, copy: CopyRow, schema: pa.Schema) -> None:
    """Create the table for a copy's rows."""
    connection.execute(f"CREATE TABLE {copy.rows} ({columns_sql(schema)}, {_HIDDEN})")


def _columns_of(connection: DuckDBPyConnection, copy: CopyRow) -> list[str]:
    """The names of a copy's columns, without the hidden ones."""
    found = connection.execute(f"SELECT * FROM {copy.rows} LIMIT 0").description
    return [name for name, *_ in found or () if name not in (PART, AT)]


def _add_columns(connection: DuckDBPyConnection, copy: CopyRow, new: pa.Schema) -> None:
    """Add columns, null in existing rows."""
    for field in new:
        connection.execute(f"ALTER TABLE {copy.rows} ADD COLUMN {columns_sql(pa.schema([field]))}")


def _show_view(connection: DuckDBPyConnection, copy: CopyRow, columns: Sequence[str]) -> None:
    """Make the view show these columns of a copy."""
    listed = ", ".join(map(quoted, columns))
    view = f"main.{quoted(copy.table)}"
    connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {listed} FROM {copy.rows}")


def _insert(connection: DuckDBPyConnection, copy: CopyRow, rows: pa.Table) -> None:
    """Add rows that have their hidden columns."""
    check_times(rows)
    written = to_written(rows)
    with _registered(connection, written), _maps_named(written):
        connection.execute(f"INSERT INTO {copy.rows} BY NAME SELECT * FROM sent")


def _delete_keys(connection: DuckDBPyConnection, copy: CopyRow, keys: pa.Table) -> None:
    """Remove the rows that equal a row of ``keys`` in all its columns."""
    with _registered(connection, to_written(keys)):
        _delete(connection, copy, keys.column_names, "sent")


def _take_back(
    connection: DuckDBPyConnection, copy: CopyRow, part: int, which: str, groups: Sequence[int]
) -> None:
    """Remove a partition's rows of these groups; with ``NOT``, those of all others."""
    connection.execute(
        f"DELETE FROM {copy.rows} WHERE {quoted(PART)} = ?"
        f" AND {which} list_contains(?, {quoted(AT)})",
        [part, list(groups)],
    )


def _insert_files(
    connection: DuckDBPyConnection,
    copy: CopyRow,
    files: pa.Table,
    columns: Sequence[str],
    key: Sequence[str],
) -> None:
    """Add all rows of Parquet files as group 0.

    Args:
        files: The columns ``path`` and ``part``, the number of the partition.
        columns: The columns to read; every file has them.
        key: The primary key if rows replace others, else empty.
    """
    paths = ", ".join("'" + path.replace("'", "''") + "'" for path in files["path"].to_pylist())
    # Only the file's own columns count, not those in the names of its folders.
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
    """Name the column of a map with a duplicate key; DuckDB's error does not."""
    import duckdb

    try:
        yield
    except duckdb.InvalidInputException as exc:
        if "duplicate key" not in str(exc):
            raise
        raise InvalidRequest(
            f"column {_with_equal_keys(rows)!r}: a map has a key twice, which DuckDB does not"
            " allow; leave the column out (--columns)"
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


@contextlib.contextmanager
def _registered(connection: DuckDBPyConnection, rows: pa.Table) -> Iterator[None]:
    """Register an Arrow table under the name ``sent`` for the block."""
    connection.register("sent", rows)
    yield
    # Not in a failed transaction: it would fail as well and hide the first error.
    connection.unregister("sent")
