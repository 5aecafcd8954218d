"""One partition's buffers: at most one active, and the frozen ones in the order of their freezing.

Law of this file: rows go into the active buffer only; a buffer never mixes epochs; frozen buffers
leave from the front, so a partition's files are a prefix of its log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingester.buffer.handle import BufferHandle
from persist.partitioning import PartitionValues, folder_of

if TYPE_CHECKING:
    from ingester.buffer.table import TableBuffer

PartitionKey = tuple[int, PartitionValues]
"""(partition spec id, partition values)"""


class PartitionBuffer:
    """The buffers of one partition of one table. Loop only."""

    def __init__(self, table: TableBuffer, key: PartitionKey) -> None:
        self.table = table
        self.key = key
        self.active: BufferHandle | None = None
        self.frozen: deque[BufferHandle] = deque()

    @property
    def name(self) -> str:
        """The folder name, ``time_day=2026-11-21``; empty for an unpartitioned table."""
        return folder_of(self.table.definition.spec_of(self.key[0]), self.key[1])

    def handles(self) -> Iterator[BufferHandle]:
        """Unreleased buffers in log order."""
        yield from self.frozen
        if self.active is not None:
            yield self.active

    @property
    def empty(self) -> bool:
        """Whether nothing is buffered, so that the partition can be forgotten."""
        return self.active is None and not self.frozen

    def freeze(self, now: float) -> BufferHandle | None:
        """Take everything buffered so far out of the way of new writes, keeping it readable.

        Args:
            now: the loop's clock, seconds.

        Returns:
            The frozen buffer, with at least one row, covering ``first_seq..last_seq`` of this
            partition without gaps; ``None`` when the buffer is empty.
        """
        handle = self.active
        if handle is None:
            return None
        self.active = None
        handle.frozen = True
        handle.total_rows = handle.rows.rows
        handle.frozen_at = now
        self.frozen.append(handle)
        return handle
