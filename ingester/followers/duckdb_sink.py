"""Copies of tables in a DuckDB file: the rows and the states of followers, in one transaction.

    transaction ─▶ file attached ─▶ still ours? ─▶ put, delete, states ─▶ COMMIT ─▶ file free

Law of this file: the file alone is the truth. What is remembered here was read from the file or
written to it in the transaction that is open, and is forgotten where one fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingester.followers import duckdb_catalog as catalog
from ingester.followers import duckdb_rows as rows_of
from ingester.followers.duckdb_file import DuckDBFile, full_disk_told
from ingester.followers.duckdb_types import columns_sql, is_read_alike
from ingester.followers.errors import FollowerError
from ingester.followers.sink import (
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
"""The characters by which DuckDB takes a path for a pattern."""


class DuckDBDatabase:
    """A DuckDB file that this follower writes to: the sinks of its tables share it.

    Args:
        path: of the file, which is made unless it is there.
        locked: is told who has the file open, once for each time that it has to be waited for.

    Raises:
        InvalidRequest: the file is none of DuckDB's, cannot be written to, or is of a newer layout.
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
        """A connection within a transaction, in a file that is still this follower's."""
        with self.file.transaction() as connection:
            catalog.check_holder(connection, self._token)
            yield connection

    def sink(self, table: FollowedTable) -> DuckDBSink:
        """The sink of a table; the factory for a follower."""
        return DuckDBSink(self, table)

    def close(self) -> None:
        """Let the file go."""
        self.file.close()


class DuckDBSink(FollowerSink):
    """Keeps the copy of one table in a DuckDB file.

    Raises:
        InvalidRequest: a column's type has no counterpart, or the view's name is taken.
    """

    version = 1
    """Rises when copies are to be built anew."""

    def __init__(self, database: DuckDBDatabase, table: FollowedTable) -> None:
        columns_sql(table.schema)  # refuses what has no counterpart, before anything is made
        self._database = database
        self._table = table
        self._identity = (table.namespace, table.table, table.table_version)
        self._open: DuckDBPyConnection | None = None
        self._copies: list[catalog.CopyRow] | None = None
        self._columns: list[str] | None = None
        self._parts: dict[str, int] = {}
        self._from_files_alone = False
        with database.transaction() as connection:
            catalog.check_view_name(connection, table.namespace, table.table)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all calls inside, states included, at the end; none where the block raises."""
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
        return _States(self)

    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy, shown at once or beside the one that is shown."""
        for copy in self._known():
            if is_current or not copy.shown:
                catalog.drop_copy(self.connection, copy)
        catalog.check_view_name(self.connection, self._table.namespace, self._table.table)
        copy = catalog.add_copy(self.connection, self._identity, is_current)
        rows_of.create(self.connection, copy, self._table.schema)
        if is_current:
            rows_of.show(self.connection, copy, self._table.schema.names)
        self._forget()
        self._from_files_alone = True

    def on_end_version(self, current: bool) -> None:
        """Show the copy that was begun last, in the place of any other; or drop it."""
        newest = self._copy()
        if not current:
            if not newest.shown:
                catalog.drop_copy(self.connection, newest)
                self._forget()
            return
        for copy in self._known()[:-1]:
            catalog.drop_copy(self.connection, copy)
        catalog.show_copy(self.connection, newest)
        rows_of.show(self.connection, newest, rows_of.columns_of(self.connection, newest))
        self._forget()

    def on_recovery(self) -> None:
        """Make the view anew: somebody may have dropped it."""
        for copy in self._known():
            if copy.shown:
                rows_of.show(self.connection, copy, rows_of.columns_of(self.connection, copy))

    def put(self, rows: Rows) -> None:
        """Add rows; in a table with a primary key in the place of those with the same key."""
        copy = self._fitting(rows.batch.schema)
        self._from_files_alone = False
        if self._table.keyed:
            keys = rows.batch.select(self._table.primary_key)
            rows_of.delete_keys(self.connection, copy, keys)
        # What is large goes to the disk at once, and not with the transaction's end.
        with full_disk_told(self._database.file.path):
            rows_of.insert(self.connection, copy, self._numbered(rows))

    def delete(self, keys: pa.Table) -> None:
        """Remove the rows of these keys."""
        rows_of.delete_keys(self.connection, self._copy(), keys.select(self._table.primary_key))

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""
        rows_of.take_back(self.connection, self._copy(), self._part(part), groups)

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition but those of the groups to keep."""
        rows_of.take_back_all(self.connection, self._copy(), self._part(part), keep)

    def drop_version(self, table_version: int) -> None:
        """Remove the copies of another version of the table."""
        of = (self._table.namespace, self._table.table, table_version)
        for copy in catalog.copies_of(self.connection, of):
            catalog.drop_copy(self.connection, copy)

    def put_files(self, files: Sequence[FileRows]) -> None:
        """Add the rows of files, which DuckDB reads by itself where it reads the same."""
        alike = is_read_alike(self._table.schema)
        groups: dict[tuple[str, ...], list[FileRows]] = {}
        for file in files:
            if alike and not _GLOB & set(file.path):
                groups.setdefault(file.columns, []).append(file)
            else:
                self._put_read(file)
        # No two files of one version have a key in common.
        key = () if self._from_files_alone else self._table.primary_key
        for columns, group in groups.items():
            copy = self._fitting(self._schema_of(group[0], columns))
            parts = [self._part(file.part) for file in group]
            paths = pa.table(
                {"path": [file.path for file in group], "part": pa.array(parts, pa.int32())}
            )
            with full_disk_told(self._database.file.path):
                rows_of.insert_files(self.connection, copy, paths, columns, key)

    @property
    def connection(self) -> DuckDBPyConnection:
        """The connection of the transaction that is open."""
        if self._open is None:
            raise FollowerError("a DuckDB sink was called outside of its transaction")
        return self._open

    def _schema_of(self, file: FileRows, columns: Sequence[str]) -> pa.Schema:
        """The types of columns: the table's, and of those that came later what the file says."""
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
        """The rows with hidden columns behind, where partitions are numbers."""
        tagged = rows.tagged()
        place = tagged.schema.get_field_index(PART)
        part = tagged.column(place).combine_chunks()
        numbers = pa.array([self._part(name) for name in part.dictionary.to_pylist()], pa.int32())
        return tagged.set_column(place, PART, pc.take(numbers, part.indices))

    def _part(self, name: str) -> int:
        if name not in self._parts:
            self._parts = catalog.part_numbers(self.connection, self._copy(), [name])
        return self._parts[name]

    def _fitting(self, schema: pa.Schema) -> catalog.CopyRow:
        """The copy that is written to, with all these columns."""
        copy = self._copy()
        if self._columns is None:
            self._columns = rows_of.columns_of(self.connection, copy)
        known = set(self._columns)
        new = pa.schema(field for field in schema if field.name not in known)
        if len(new):
            rows_of.add_columns(self.connection, copy, new)
            self._columns += new.names
            if copy.shown:
                rows_of.show(self.connection, copy, self._columns)
        return copy

    def _copy(self) -> catalog.CopyRow:
        """The copy that is written to: the one begun last."""
        if not self._known():
            raise FollowerError("a DuckDB sink was given rows before a version was begun")
        return self._known()[-1]

    def _known(self) -> list[catalog.CopyRow]:
        if self._copies is None:
            self._copies = catalog.copies_of(self.connection, self._identity)
        return self._copies

    def _forget(self) -> None:
        self._copies, self._columns, self._parts = None, None, {}
        self._from_files_alone = False


class _States:
    """The states in the file, read and written in the sink's open transaction."""

    def __init__(self, sink: DuckDBSink) -> None:
        self._sink = sink

    def get(self, key: StateKey) -> bytes | None:
        return catalog.get_state(self._sink.connection, key)

    def put(self, key: StateKey, state: bytes) -> None:
        catalog.put_state(self._sink.connection, key, state)

    def delete(self, key: StateKey) -> None:
        catalog.delete_state(self._sink.connection, key)
