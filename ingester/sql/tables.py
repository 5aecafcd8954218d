"""The tables of one query: one snapshot of all of them, and how the worker reads each.

    names ─▶ open and refresh ─▶ snapshots, in one step of the loop ─▶ files that the worker reads
                                                                      itself, and sources

A local file whose types DuckDB reads exactly is read by the worker. Everything else is a source:
buffered rows, files in other stores, tables with more than :data:`NATIVE_FILES` files, where the
manifest leaves out most of them before any is opened, and nanoseconds with a zone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, UnknownTable
from ingester.query.fair_scheduler import CpuAccount
from ingester.query.queries import Queries
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.snapshot import Snapshot, snapshot_all, snapshot_version
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from ingester.schema.align import projected
from ingester.sql.wire import NativeFiles, TableGiven
from ingester.tables.catalog import Catalog
from persist.manifest import Add, version_folder
from persist.parquet.reading import DataFile
from persist.table import TableKey

NATIVE_FILES = 1000
_VERSIONED = re.compile(r"(?P<table>.+)@v(?P<version>[0-9]{1,18})", re.DOTALL)
MayRead = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Named:
    """A table that a statement names.

    Attributes:
        key: the table.
        spelled: namespace and name as the statement has them.
        version: the manifest version; None for the newest rows.
    """

    key: TableKey
    spelled: tuple[str, str]
    version: int | None


@dataclass(slots=True)
class QueryTables:
    """The snapshots of a query. Must be closed."""

    given: list[TableGiven] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    @property
    def namespaces(self) -> set[str]:
        """The namespaces that the query reads."""
        return {given.namespace for given in self.given}

    def close(self) -> None:
        """Release the snapshots. Thread-safe and idempotent."""
        for snapshot in self.snapshots:
            snapshot.close()


class Source:
    """Rows of a table's snapshot that the worker reads through the daemon.

    Args:
        snapshot: has the files and pins of this source only.
        changes: whether the rows say in ``_op`` what happened to their key.
    """

    def __init__(
        self, queries: Queries, table: TableKey, snapshot: Snapshot, *, changes: bool = False
    ) -> None:
        self._queries = queries
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


class TableFinder:
    """Finds tables by the names in statements, and takes their snapshots.

    Args:
        root: the folder of a local store; None for other stores.
    """

    def __init__(
        self, catalog: Catalog, queries: Queries, applied_seq: Callable[[], int], root: str | None
    ) -> None:
        self._catalog = catalog
        self._queries = queries
        self._applied_seq = applied_seq
        self._root = root

    async def snapshots(
        self, names: Sequence[tuple[str, str]], may_read: MayRead
    ) -> list[tuple[Named, TableBuffer, Snapshot]]:
        """Return one snapshot of all tables that exist and may be read. On the loop.

        Raises:
            BadRequest: a version is not kept, or a name is ambiguous.
            StoreUnreachable: a table is not loaded and the store cannot be reached.
        """
        found: list[tuple[Named, TableBuffer, Any]] = []
        seen: dict[tuple[str, str], Named] = {}
        for namespace, name in names:
            named = await self._find(namespace, name, may_read)
            if named is None:
                continue
            before = seen.setdefault(folded(namespace, name), named)
            if before.key != named.key:
                raise BadRequest(
                    f"{'.'.join(before.key)} and {'.'.join(named.key)} differ only in case: a query"
                    " can read one of them"
                )
            if before is not named:
                continue
            table = await self._catalog.open(*named.key)
            state = None
            if named.version is not None:
                state = await self._queries.version_tail.files(table, named.version)
            else:
                await self._queries.refresh(table)
            found.append((named, table, state))
        # Atomic: no await until all snapshots are taken, so they are of one moment.
        return [
            (
                named,
                table,
                snapshot_all(table, self._applied_seq)
                if state is None
                else snapshot_version(state, self._applied_seq()),
            )
            for named, table, state in found
        ]

    async def everything(self, may_read: MayRead) -> list[TableGiven]:
        """Return all tables that may be read, without rows. On the loop."""
        found = []
        for key in await self._catalog.names():
            if not may_read(key[0]):
                continue
            try:
                table = await self._catalog.open(*key)
            except UnknownTable:
                continue  # dropped meanwhile
            found.append(self.without_rows(Named(key, key, None), table.definition.schema))
        return found

    def without_rows(self, named: Named, schema: pa.Schema) -> TableGiven:
        """Return a table for a query that is only described."""
        return TableGiven(*named.spelled, _encoded(schema), [], [], [], [])

    def split(
        self, named: Named, table: TableBuffer, snapshot: Snapshot, tables: QueryTables
    ) -> TableGiven:
        """Decide how the worker reads each part of a snapshot. Runs in a thread.

        Args:
            tables: receives the sources.
        """
        definition = snapshot.definition
        files = [add for _, adds in snapshot.files for add in adds]
        native, others = self._native(table.key, snapshot, files)

        def source(kept: list[Add], pins: dict[Any, Any], *, changes: bool = False) -> list[int]:
            if not kept and not any(pins.values()):
                return []
            groups: dict[Any, list[Add]] = {}
            for add in kept:
                groups.setdefault(add.partition, []).append(add)
            own = dataclasses.replace(snapshot, files=list(groups.items()), pins=pins)
            tables.sources.append(Source(self._queries, table.key, own, changes=changes))
            return [len(tables.sources) - 1]

        pins = {key: tuple(p for p in some if p.rows) for key, some in snapshot.pins.items()}
        keyed = definition.keyed
        rows = source(others, {} if keyed else pins)
        changes = source([], pins, changes=True) if keyed else []
        key = list(definition.primary_key)
        return TableGiven(*named.spelled, _encoded(definition.schema), key, native, rows, changes)

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

    async def _find(self, namespace: str, name: str, may_read: MayRead) -> Named | None:
        spelled, version = (namespace, name), None
        versioned = _VERSIONED.fullmatch(name)
        if versioned is not None:
            name, version = versioned["table"], int(versioned["version"])
        if not namespace:
            return None
        key = (namespace, name)
        try:
            if may_read(namespace):
                await self._catalog.open(*key)
                return Named(key, spelled, version)
        except (UnknownTable, BadRequest):
            pass
        wanted = folded(namespace, name)
        similar = [
            each
            for each in await self._catalog.names()
            if folded(*each) == wanted and may_read(each[0])
        ]
        if len(similar) > 1:
            shown = " and ".join(f"{namespace}.{table}" for namespace, table in similar)
            raise BadRequest(f"{namespace}.{name} may be {shown}: write the name exactly")
        return Named(similar[0], spelled, version) if similar else None


def folded(namespace: str, name: str) -> tuple[str, str]:
    """Return a name as SQL compares it: names of tables are ASCII."""
    return namespace.lower(), name.lower()


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


def _encoded(schema: pa.Schema) -> bytes:
    plain = pa.schema([column.remove_metadata() for column in schema])
    encoded: bytes = plain.serialize().to_pybytes()
    return encoded
