"""A table's files, read from the store: which versions there are, and the rows of files.

Law of this file: files are read in parallel, and their rows come in the order of the files: whoever
takes them waits for one file while others are read ahead, each by as many batches as there is room
for. Only the columns and row groups that are asked for are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.followers.channel import Channel
from ingester.followers.sink import FileRows
from ingester.followers.state import part_name
from persist.manifest import Add, CommittedVersion, Manifest, TableState, version_as_of
from persist.parquet.reading import (
    DataFile,
    decoded_bytes,
    group_bounds,
    open_checked,
    read_footer,
    told,
)
from persist.predicate.parse import parse_predicate
from persist.predicate.predicate import Predicate
from persist.store.local import LocalStore
from persist.table import TableDefinition

READERS = 4
"""The files that are read at the same time."""
PIECE_BYTES = 16 << 20
"""The size of a piece in memory, about."""


class Piece(NamedTuple):
    """Rows of a file: some, or none; ``last`` where the file has no more."""

    add: Add
    rows: pa.Table
    last: bool


class Files(Protocol):
    """The versions of a table and the rows of its files."""

    def newest(self, known: TableState | None = None) -> TableState:
        """The newest version."""

    def version(self, version: int, known: TableState | None = None) -> TableState:
        """One version. Raises ``VersionNotKept``."""

    def as_of(self, moment: datetime) -> TableState:
        """The newest version of a moment."""

    def changes(self, since: int, until: int) -> list[CommittedVersion]:
        """What later versions did."""

    def pieces(
        self, state: TableState, adds: Sequence[Add], names: Sequence[str] | None = None
    ) -> Iterator[Piece]:
        """The rows of files, in the order of ``adds``: columns of the copy, those that match.

        Args:
            names: Other columns, of all rows.
        """

    def count(self, state: TableState, add: Add) -> int:
        """The rows of a file that match."""

    def local(self, adds: Sequence[Add]) -> list[FileRows] | None:
        """The files where they lie on this machine; None where they do not, or not all rows are
        asked for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of files, and how.

    Attributes:
        columns: None for all that the table has.
        filter: In the protocol's form.
        room: The batches that each file is read ahead by.
    """

    columns: tuple[str, ...] | None = None
    filter: Any = None
    readers: int = READERS
    room: int = 2


class TableFiles:
    """The files of one table in a store. One thread takes pieces."""

    def __init__(self, manifest: Manifest, reading: Reading) -> None:
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
    ) -> Iterator[Piece]:
        """See :class:`Files`."""
        scan = self._scan(state, names)
        coming: list[Channel[Piece]] = []
        readers = ThreadPoolExecutor(max(1, min(self._reading.readers, len(adds))), "follower-read")
        try:
            for add in adds:
                channel: Channel[Piece] = Channel(self._reading.room)
                coming.append(channel)
                # In their order: the file that is waited for is always one of those being read.
                readers.submit(scan.send, add, channel)
            for channel in coming:
                yield from channel
        finally:
            for channel in coming:
                channel.close()
            # A reader may wait for the store: its thread ends by itself.
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
    """The rows with just the columns of ``schema``; those that they lack are null."""
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
    """What is read of each file."""

    manifest: Manifest
    schema: pa.Schema
    wanted: pa.Schema
    predicate: Predicate

    def send(self, add: Add, channel: Channel[Piece]) -> None:
        """Put the pieces of a file; what raises is raised where they are taken."""
        try:
            rows = self.read(add)
            piece = next(rows, None)
            while piece is not None:
                following = next(rows, None)
                if not channel.put(Piece(add, piece, following is None)):
                    return
                piece = following
            channel.end()
        except BaseException as exc:
            channel.end(exc)

    def read(self, add: Add) -> Iterator[pa.Table]:
        """The rows of a file by row groups; at least one table, which may be empty."""
        empty = True
        if self.predicate.may_match(add.stats, add.rows):
            file = DataFile.of(add, self.manifest.root)
            with (
                self.manifest.store.open(file.path) as source,
                told(file.path),
                open_checked(source, file, pre_buffer=True) as parquet,
            ):
                for rows in self._groups(parquet):
                    empty = False
                    yield rows
        if empty:
            yield self.wanted.empty_table()

    def _groups(self, parquet: pq.ParquetFile) -> Iterator[pa.Table]:
        there = set(parquet.schema_arrow.names)
        needed = dict.fromkeys((*self.wanted.names, *self.predicate.columns))
        names = [name for name in needed if name in there]
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
