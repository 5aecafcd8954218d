"""One table in full: its definition, its partitions and its files, in pages.

    GET /api/tables/NAMESPACE/TABLE              ``TableDetail``
    GET /api/tables/NAMESPACE/TABLE/partitions   a page of ``PartitionStatus``
    GET /api/tables/NAMESPACE/TABLE/files        a page of ``FileStatus``, of one partition or all

A :class:`TableView` is taken on the loop and immutable, so that pages are made of it in a thread: a
table may have 100,000 files. Column statistics are not shown, because they contain values of rows.
The key of a partition is its folder, spec and values; of a file, its path. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ingester.config.settings import Level
from ingester.errors import BadRequest
from ingester.observability.status import Buffered, PersistedRows, PublishedFormat
from ingester.observability.status_lists import PageRequest, StatusPage, page_of
from persist.manifest import Add, PartitionKey, TableState
from persist.partitioning import folder_of
from persist.table import TableDefinition, TableKey

LISTS = ("partitions", "files")


class ColumnStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table; ``type`` is Arrow's name."""

    name: str
    type: str
    nullable: bool


class BufferedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a partition in memory."""

    rows: int = 0
    bytes: int = 0
    frozen: int = 0
    """Buffers waiting for their file, or for the version with it."""
    oldest_s: float | None = None
    """Age of the oldest row in memory; null if nothing is buffered."""


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: its rows in memory, and in the files of the installed version."""

    key: str
    """Identifies the partition in its table, even if two share a folder."""
    folder: str
    """``time_day=2026-11-21``; empty for a table without partitions."""
    buffered: BufferedPartition
    persisted: PersistedRows


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A data file of the installed version; sequences are those of its writer's log."""

    path: str
    """Relative to the folder of the generation."""
    folder: str
    kind: str
    rows: int
    bytes: int
    writer: str
    epoch: int
    first_seq: int
    last_seq: int
    at: str


class TableDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A table's definition, and where its rows are."""

    namespace: str
    table: str
    manifest_version: int
    """The newest version that this daemon has installed."""
    seen_s: float
    """Seconds since this daemon last looked for a newer version."""
    table_version: int
    owner: str | None
    """The daemon that takes the writes of a keyed table; null if any does, or none yet."""
    columns: list[ColumnStatus]
    primary_key: list[str]
    partition_by: list[str]
    sort_by: list[str]
    partitions: int
    """The number of partitions with rows in memory or in files."""
    buffered: Buffered
    persisted: PersistedRows
    max_age_s: float | None = None
    """Age at which the table's buffers are flushed, if below ``persist.max_age``; null if unset."""
    ack: Level = "disk"
    """The level at which this daemon acknowledges writes to the table."""
    published: list[PublishedFormat] = []
    """The table in open formats."""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one moment: a manifest version, and the buffered partitions."""

    key: TableKey
    state: TableState
    definition: TableDefinition
    buffered: Mapping[PartitionKey, BufferedPartition]
    seen_s: float
    published: Sequence[PublishedFormat] = ()
    ack: Level = "disk"

    def detail(self) -> TableDetail:
        """Return the definition and the totals."""
        state, definition = self.state, self.definition
        in_memory = self.buffered.values()
        return TableDetail(
            namespace=self.key[0],
            table=self.key[1],
            manifest_version=state.version,
            seen_s=self.seen_s,
            table_version=state.table_version,
            owner=None if state.owner is None else state.owner.ingester_id,
            columns=[
                ColumnStatus(name=f.name, type=str(f.type), nullable=f.nullable)
                for f in definition.schema
            ],
            primary_key=list(definition.primary_key),
            partition_by=list(definition.spec.texts()),
            sort_by=list(definition.sort_by),
            partitions=len({*state.partitions, *self.buffered}),
            buffered=Buffered(
                rows=sum(each.rows for each in in_memory),
                bytes=sum(each.bytes for each in in_memory),
                partitions=len(self.buffered),
            ),
            persisted=PersistedRows(rows=state.rows, bytes=state.bytes, files=state.file_count),
            max_age_s=definition.max_age_s,
            ack=self.ack,
            published=list(self.published),
        )

    def page(self, asked: PageRequest, partition: str | None = None) -> StatusPage:
        """Return a page of the partitions or the files.

        Args:
            asked: the list, the key to start after, the number, and the part of a key to find.
            partition: the key of the partition whose files are requested; None for all.

        Raises:
            BadRequest: the list, its limits or the partition do not exist.
        """
        asked.check(LISTS)
        if asked.list == "partitions":
            keys = {*self.state.partitions, *self.buffered}
            keyed = ((self._name(key), key) for key in keys)
            return page_of(asked, keyed, self._partition)
        return page_of(asked, self._files(partition), partial(_file, self))

    def folder(self, key: PartitionKey) -> str:
        """Return the folder of a partition, by the spec it was written with."""
        spec_id, values = key
        return folder_of(self.definition.spec_of(spec_id), values)

    def _name(self, key: PartitionKey) -> str:
        # Null and an empty text share a folder, and specs may.
        return f"{self.folder(key)} {key[0]} {msgspec.json.encode(key[1]).decode()}"

    def _partition(self, key: PartitionKey) -> PartitionStatus:
        files = self.state.partitions.get(key, ())
        return PartitionStatus(
            key=self._name(key),
            folder=self.folder(key),
            buffered=self.buffered.get(key, BufferedPartition()),
            persisted=PersistedRows(
                rows=sum(each.rows for each in files),
                bytes=sum(each.bytes for each in files),
                files=len(files),
            ),
        )

    def _files(self, partition: str | None) -> Iterator[tuple[str, Add]]:
        if partition is None:
            return iter(self.state.files.items())
        for key in {*self.state.partitions, *self.buffered}:
            if self._name(key) == partition:
                return ((add.path, add) for add in self.state.partitions.get(key, ()))
        raise BadRequest(
            f"files: table {'/'.join(self.key)} has no partition {partition[:200]!r} now;"
            " take the 'key' of one of its partitions"
        )


def _file(view: TableView, add: Add) -> FileStatus:
    return FileStatus(
        path=add.path,
        folder=view.folder(add.partition),
        kind=add.kind,
        rows=add.rows,
        bytes=add.bytes,
        writer=add.writer,
        epoch=add.epoch,
        first_seq=add.first_seq,
        last_seq=add.last_seq,
        at=add.at,
    )
