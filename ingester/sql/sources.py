"""How the worker reads a table's snapshot: files by itself, everything else as sources.

A local file whose types DuckDB reads exactly is read by the worker. Everything else is a source:
buffered rows, files in other stores, tables with more than :data:`NATIVE_FILES` files, where the
manifest leaves out most of them before any is opened, and nanoseconds with a zone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from ingester.query.fair_scheduler import CpuAccount
from ingester.query.queries import Queries
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.snapshot import Snapshot
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from ingester.schema.align import projected
from ingester.sql.apart import read_apart
from ingester.sql.wire import NativeFiles, TableGiven
from persist.manifest import Add, version_folder
from persist.parquet.reading import DataFile
from persist.table import TableKey

NATIVE_FILES = 1000
"""A query opens all of a table's files that the worker reads."""


class Source(Protocol):
    """Rows that the worker reads through the daemon, as often as it likes."""

    def read(
        self,
        columns: list[str],
        filter_: list[list[list[Any]]] | None,
        check_wanted: Callable[[], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in these columns; a generator, closed if not read to its end."""


class SnapshotSource:
    """Rows of a table's snapshot that the worker reads through the daemon.

    Args:
        snapshot: has the files and pins of this source only.
        remote: whether the files are in a store that may be silent for long.
        changes: whether the rows say in ``_op`` what happened to their key.
    """

    def __init__(
        self,
        queries: Queries,
        table: TableKey,
        snapshot: Snapshot,
        *,
        remote: bool,
        changes: bool = False,
    ) -> None:
        self._queries = queries
        self._remote = remote
        self._table = table
        self._snapshot = snapshot
        self._changes = changes

    def read(
        self,
        columns: list[str],
        filter_: list[list[list[Any]]] | None,
        check_wanted: Callable[[], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in these columns; close it if not read to its end.

        Raises:
            BadRequest, StoreUnreachable, InternalFailure
        """
        if self._remote:
            return read_apart(partial(self._read, columns, filter_), check_wanted)
        return self._read(columns, filter_, check_wanted)

    def _read(
        self,
        columns: list[str],
        filter_: list[list[list[Any]]] | None,
        check_wanted: Callable[[], None],
    ) -> Iterator[pa.RecordBatch]:
        snapshot = dataclasses.replace(
            self._snapshot,
            pins={
                key: tuple(pin.again() for pin in pins) for key, pins in self._snapshot.pins.items()
            },
        )
        try:
            account = CpuAccount(self._table[0], check_wanted=check_wanted)
            selection = self._selection(columns, filter_, account)
            groups = self._queries.row_groups
            reader = PartReader(snapshot, selection, groups, self._table, account)
        except BaseException:
            snapshot.close()
            raise
        for part in AnswerStream(self._table, reader, on_close=lambda stream: None):
            yield part.batch.select(columns) if self._changes else part.batch

    def _selection(
        self, columns: list[str], filter_: list[list[list[Any]]] | None, account: CpuAccount
    ) -> Selection:
        ticket = Ticket(*self._table, columns=columns, filter=None if self._changes else filter_)
        if not self._changes:
            return self._queries.selection(self._snapshot.definition, ticket, account)
        ticket = Ticket(*self._table, columns=[name for name in columns if name != "_op"])
        plain = self._queries.selection(self._snapshot.definition, ticket, account)
        schema = projected(self._snapshot.definition.schema, ticket.columns, True)
        return plain._replace(schema=schema, marks_operations=True)


class SnapshotReader:
    """Decides how the worker reads each part of a snapshot.

    Args:
        root: the folder of a local store; None for other stores.
    """

    def __init__(self, queries: Queries, root: str | None) -> None:
        self._queries = queries
        self._root = root

    def given(
        self, spelled: tuple[str, str], table: TableKey, snapshot: Snapshot, sources: list[Source]
    ) -> TableGiven:
        """Return a table with its files and the numbers of its sources. Runs in a thread.

        Args:
            spelled: namespace and name as the statement has them.
            sources: receives the sources.
        """
        definition = snapshot.definition
        files = [add for _, adds in snapshot.files for add in adds]
        native, others = self._native(table, snapshot, files)

        def source(kept: list[Add], pins: dict[Any, Any], *, changes: bool = False) -> list[int]:
            if not kept and not any(pins.values()):
                return []
            groups: dict[Any, list[Add]] = {}
            for add in kept:
                groups.setdefault(add.partition, []).append(add)
            own = dataclasses.replace(snapshot, files=list(groups.items()), pins=pins)
            remote = self._root is None
            sources.append(
                SnapshotSource(self._queries, table, own, remote=remote, changes=changes)
            )
            return [len(sources) - 1]

        pins = {key: tuple(p for p in some if p.rows) for key, some in snapshot.pins.items()}
        rows = source(others, {} if definition.keyed else pins)
        changes = source([], pins, changes=True) if definition.keyed else []
        key = list(definition.primary_key)
        return TableGiven(*spelled, encoded(definition.schema), key, native, rows, [], changes)

    def _native(
        self, table: TableKey, snapshot: Snapshot, files: list[Add]
    ) -> tuple[list[NativeFiles], list[Add]]:
        """Return the files that the worker reads itself by their shape, and the others."""
        schema = snapshot.definition.schema
        if self._root is None or len(files) > NATIVE_FILES:
            return [], files
        if not all(is_exact(column.type) for column in schema):
            return [], files
        folder = version_folder(*table, snapshot.table_version)
        shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        others = []
        for add in files:
            footer = self._queries.row_groups.footer(DataFile.of(add, folder))
            own = footer.schema.to_arrow_schema()
            if not all(is_exact(column.type) for column in own):
                others.append(add)
                continue
            path = f"{self._root}/{folder}/{add.path}"
            shapes.setdefault(_shape(own, schema), []).append(path)
        native = [NativeFiles(paths, list(m), list(n)) for (m, n), paths in shapes.items()]
        return native, others


def is_exact(type_: pa.DataType) -> bool:
    """Return whether DuckDB reads a Parquet column of this type without a change of values."""
    if pa.types.is_timestamp(type_):
        return type_.unit != "ns" or type_.tz is None
    if pa.types.is_nested(type_):
        return all(is_exact(type_.field(place).type) for place in range(type_.num_fields))
    return True


def _shape(own: pa.Schema, table: pa.Schema) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that a file lacks, and those of another type."""
    missing = [column.name for column in table if own.get_field_index(column.name) < 0]
    differing = [
        column.name
        for column in table
        if column.name not in missing and own.field(column.name).type != column.type
    ]
    return tuple(missing), tuple(differing)


def encoded(schema: pa.Schema) -> bytes:
    """Return a schema without metadata as an IPC message."""
    plain = pa.schema([column.remove_metadata() for column in schema])
    message: bytes = plain.serialize().to_pybytes()
    return message
