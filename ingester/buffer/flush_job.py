"""The result of a freeze: a flush job with a frozen buffer, its table and its partition.

Making files needs the rows and their identity but no buffer; :class:`RowsToFlush` is just that,
for frozen buffers and for adopted logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingester.buffer.handle import BufferHandle
from ingester.buffer.rows import BufferedRows
from ingester.buffer.table import PartitionBuffer, TableBuffer
from persist.manifest import PartitionKey, TableState, version_folder
from persist.partitioning import folder_of
from persist.table import TableKey


@dataclass(frozen=True, slots=True, eq=False)
class RowsToFlush:
    """Rows of one partition and one epoch, in log order, to be written to files."""

    table: TableKey
    partition: PartitionKey
    epoch: int
    first_seq: int
    last_seq: int
    """Sequences of the first and the last operation, both inclusive."""
    rows: BufferedRows

    def folder_of(self, state: TableState) -> str:
        """The store folder of this table version's files."""
        return version_folder(*self.table, state.table_version)


class AtomicFlush:
    """Buffers of one table that are committed in one version.

    ``dissolved`` means that one of them cannot be flushed, so that each is committed separately.
    """

    __slots__ = ("dissolved", "members")

    def __init__(self, members: Iterable[BufferHandle]) -> None:
        self.members = frozenset(members)
        self.dissolved = False


@dataclass(frozen=True, slots=True, eq=False)
class FlushJob:
    """A frozen buffer to be flushed."""

    table: TableBuffer
    partition: PartitionBuffer
    handle: BufferHandle
    atomic: AtomicFlush | None = None
    """The buffers, including this one, that must be committed in one version."""

    @property
    def partition_name(self) -> str:
        """The folder name, ``time_day=2026-11-21``; empty for an unpartitioned table."""
        spec_id, values = self.handle.partition
        return folder_of(self.table.definition.spec_of(spec_id), values)

    @property
    def rows(self) -> RowsToFlush:
        """The rows to write to files."""
        handle = self.handle
        return RowsToFlush(
            self.table.key,
            handle.partition,
            handle.epoch,
            handle.first_seq,
            handle.last_seq,
            handle.rows,
        )
