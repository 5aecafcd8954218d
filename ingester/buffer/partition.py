"""One partition's buffers: at most one active, and the frozen ones in the order of their freezing.

Law of this file: rows go into the active buffer only; a buffer never mixes epochs; frozen buffers
leave from the front, so a partition's files are a prefix of its log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ingester.buffer.handle import BufferHandle
from persist.manifest import PartitionKey
from persist.table import TableKey


class PartitionBuffer:
    """The buffers of one partition of one table. Loop only."""

    def __init__(self, table: TableKey, key: PartitionKey) -> None:
        self.table = table
        self.key = key
        self.active: BufferHandle | None = None
        self.frozen: deque[BufferHandle] = deque()

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
        handle.freeze(now)
        self.active = None
        self.frozen.append(handle)
        return handle
