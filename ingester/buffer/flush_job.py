"""A freeze hands out a flush job: a frozen buffer, and the table and partition that it is of.

Law of this file: values. Whoever makes files needs the rows and their identity, and no buffer:
:class:`RowsToFlush` says just that, whether the rows come from a freeze or from an adopted log.
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
    """Rows of one partition and one epoch, in log order, that files are to be made of."""

    table: TableKey
    partition: PartitionKey
    epoch: int
    first_seq: int
    last_seq: int
    """The log's sequences of the first and of the last operation, both inclusive."""
    rows: BufferedRows

    def folder_of(self, state: TableState) -> str:
        """The folder in the store of the files of this table version."""
        return version_folder(*self.table, state.table_version)


class AtomicFlush:
    """Buffers of one table that go into files in one version, unless one of them cannot.

    ``dissolved`` says that one cannot, so that each of them goes by itself.
    """

    __slots__ = ("dissolved", "members")

    def __init__(self, members: Iterable[BufferHandle]) -> None:
        self.members = frozenset(members)
        self.dissolved = False


@dataclass(frozen=True, slots=True, eq=False)
class FlushJob:
    """A frozen buffer that waits for its files."""

    table: TableBuffer
    partition: PartitionBuffer
    handle: BufferHandle
    atomic: AtomicFlush | None = None
    """The buffers, itself among them, that go into files in one version."""

    @property
    def partition_name(self) -> str:
        """The folder name, ``time_day=2026-11-21``; empty for an unpartitioned table."""
        spec_id, values = self.handle.partition
        return folder_of(self.table.definition.spec_of(spec_id), values)

    @property
    def rows(self) -> RowsToFlush:
        """The rows that the files are made of."""
        handle = self.handle
        return RowsToFlush(
            self.table.key,
            handle.partition,
            handle.epoch,
            handle.first_seq,
            handle.last_seq,
            handle.rows,
        )
