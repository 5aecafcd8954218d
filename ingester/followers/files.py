"""A table's files in the store: its manifest versions and the rows of files.

Only the requested columns and row groups are read. ``tests/followers/test_files.py`` covers order,
filters and read-ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.followers.sink import FileRows
from ingester.followers.state import part_name
from persist.manifest import Add, CommittedVersion, Manifest, TableState, version_as_of
from persist.parquet.reading import (
    DataFile,
    damage_errors,
    decoded_bytes,
    group_bounds,
    open_checked,
    read_footer,
)
from persist.predicate.parse import parse_predicate
from persist.predicate.predicate import Predicate
from persist.store.local import LocalStore
from persist.table import TableDefinition

READERS = 4
"""The number of files that are read at the same time."""
PIECE_BYTES = 16 << 20
"""The approximate size of a piece in memory."""

T = TypeVar("T")


class Channel(Generic[T]):
    """A bounded queue between one thread that puts and one that takes; any thread may close it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Put an item, waiting for room; False if the channel was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._room)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end; the taker gets ``error`` after the last item."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Stop taking; later calls of :meth:`put` return False."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """The items up to the end or until the channel is closed; then the error, if any."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended or self._closed)
                if not self._items:
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None and not self._closed:
            raise self._error


class FilePiece(NamedTuple):
    """Some rows of a file, possibly none; ``last`` marks the end of the file."""

    add: Add
    rows: pa.Table
    last: bool


class Files(Protocol):
    """The versions of a table and the rows of its files."""

    def newest(self, known: TableState | None = None) -> TableState:
        """The newest version."""

    def version(self, version: int, known: TableState | None = None) -> TableState:
        """One version.

        Raises:
            VersionNotKept: Garbage collection removed it, or it does not exist yet.
        """

    def as_of(self, moment: datetime) -> TableState:
        """The newest version at a moment."""

    def changes(self, since: int, until: int) -> list[CommittedVersion]:
        """The commits after one version up to another."""

    def pieces(
        self, state: TableState, adds: Sequence[Add], names: Sequence[str] | None = None
    ) -> Iterator[FilePiece]:
        """The matching rows of files, with the columns of the copy, in the order of ``adds``.

        Args:
            names: Other columns; then all rows are returned.
        """

    def count(self, state: TableState, add: Add) -> int:
        """The number of matching rows in a file."""

    def local(self, adds: Sequence[Add]) -> list[FileRows] | None:
        """The paths of files on this machine; None if they are elsewhere or a filter is set."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """The selection to read from files, and how to read it.

    Attributes:
        columns: None for all of the table.
        filter: In the protocol's form.
        readers: The number of files that are read at the same time.
        room: The number of batches read ahead from each file.
    """

    columns: tuple[str, ...] | None = None
    filter: Any = None
    readers: int = READERS
    room: int = 2


class TableFiles:
    """The files of one table in a store. One thread takes pieces.

    Files are read in parallel; their rows are returned in the order of the files.
    """

    def __init__(self, manifest: Manifest, reading: FileReading) -> None:
        self._manifest = manifest
        self._reading = reading

    def newest(self, known: TableState | None = None) -> TableState:
        """See :class:`Files`."""
        return self._manifest.load(None, known)

    def version(self, version: int, known: TableState | None = None) -> TableState:
        """See :class:`Files`."""
        return self._manifest.load(version, known)

    def as_of(self, moment: datetime) -> TableState:
        """See :class:`Files`."""
        return self._manifest.load(version_as_of(self._manifest, moment))

    def changes(self, since: int, until: int) -> list[CommittedVersion]:
        """See :class:`Files`."""
        return self._manifest.changes(since, until)

    def pieces(
        self, state: TableState, adds: Sequence[Add], names: Sequence[str] | None = None
    ) -> Iterator[FilePiece]:
        """See :class:`Files`."""
        scan = self._scan(state, names)
        coming: list[Channel[FilePiece]] = []
        readers = ThreadPoolExecutor(max(1, min(self._reading.readers, len(adds))), "follower-read")
        try:
            for add in adds:
                channel: Channel[FilePiece] = Channel(self._reading.room)
                coming.append(channel)
                # Submitted in order, so the file that is waited for is always being read.
                readers.submit(scan.send, add, channel)
            for channel in coming:
                yield from channel
        finally:
            for channel in coming:
                channel.close()
            # Not awaited: a reader may be waiting for the store.
            readers.shutdown(wait=False, cancel_futures=True)

    def count(self, state: TableState, add: Add) -> int:
        """See :class:`Files`."""
        scan = self._scan(state, ())
        if not scan.predicate.conjunctions:
            return add.rows
        return sum(rows.num_rows for rows in scan.read(add))

    def local(self, adds: Sequence[Add]) -> list[FileRows] | None:
        """See :class:`Files`."""
        store = self._manifest.store
        if not isinstance(store, LocalStore) or self._reading.filter:
            return None
        folder = store.url.removeprefix("file://")
        return [
            FileRows(
                f"{folder}/{self._manifest.object_path(add.path)}",
                part_name(add.partition),
                add.rows,
                self._columns_of(add),
            )
            for add in adds
        ]

    def _columns_of(self, add: Add) -> tuple[str, ...]:
        file = DataFile.of(add, self._manifest.root)
        with self._manifest.store.open(file.path) as source:
            names = tuple(read_footer(source, file).schema.to_arrow_schema().names)
        asked = self._reading.columns
        return names if asked is None else tuple(name for name in names if name in asked)

    def _scan(self, state: TableState, names: Sequence[str] | None) -> _Scan:
        schema = TableDefinition.of_state(state).schema
        filter_ = self._reading.filter if not names else None
        asked = self._reading.columns if names is None else tuple(names)
        return _Scan(
            self._manifest, schema, selected(schema, asked), parse_predicate(filter_, schema)
        )


def selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The columns of a copy, in the order that was asked for."""
    if columns is None:
        return schema.remove_metadata()
    return pa.schema([schema.field(name) for name in columns if name in schema.names])


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly the columns of ``schema``; missing columns are null."""
    arrays = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)], field.type))
        else:
            column = rows.column(place)
            arrays.append(column if column.type == field.type else column.cast(field.type))
    if not arrays:
        return rows.select([])
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Scan:
    """How each file is read."""

    manifest: Manifest
    schema: pa.Schema
    wanted: pa.Schema
    predicate: Predicate

    def send(self, add: Add, channel: Channel[FilePiece]) -> None:
        """Put the pieces of a file into a channel; errors are raised where they are taken."""
        try:
            rows = self.read(add)
            piece = next(rows, None)
            while piece is not None:
                following = next(rows, None)
                if not channel.put(FilePiece(add, piece, following is None)):
                    return
                piece = following
            channel.end()
        except BaseException as exc:
            channel.end(exc)

    def read(self, add: Add) -> Iterator[pa.Table]:
        """The rows of a file by row group: at least one table, which may be empty."""
        empty = True
        if self.predicate.may_match(add.stats, add.rows):
            file = DataFile.of(add, self.manifest.root)
            with (
                self.manifest.store.open(file.path) as source,
                damage_errors(file.path),
                open_checked(source, file, pre_buffer=True) as parquet,
            ):
                for rows in self._groups(parquet):
                    empty = False
                    yield rows
        if empty:
            yield self.wanted.empty_table()

    def _groups(self, parquet: pq.ParquetFile) -> Iterator[pa.Table]:
        present = set(parquet.schema_arrow.names)
        needed = dict.fromkeys((*self.wanted.names, *self.predicate.columns))
        names = [name for name in needed if name in present]
        whole = pa.schema([self.schema.field(name) for name in needed])
        footer = parquet.metadata
        for index in range(footer.num_row_groups):
            count = footer.row_group(index).num_rows
            if not self.predicate.may_match(group_bounds(footer, index, self.schema), count):
                continue
            if not names:
                yield self._matching(pa.table({"": pa.nulls(count)}), whole)
                continue
            row_bytes = max(1, decoded_bytes(footer, index, tuple(names)) // max(1, count))
            for batch in parquet.iter_batches(
                max(1, PIECE_BYTES // row_bytes), [index], names, use_threads=False
            ):
                yield self._matching(pa.Table.from_batches([batch]), whole)

    def _matching(self, rows: pa.Table, whole: pa.Schema) -> pa.Table:
        if not self.predicate.conjunctions:
            return fitted(rows, self.wanted)
        (batch,) = fitted(rows, whole).combine_chunks().to_batches() or [None]
        if batch is None:
            return self.wanted.empty_table()
        found = pa.Table.from_batches([self.predicate.select(batch)])
        return fitted(found, self.wanted)
