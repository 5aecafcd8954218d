"""Who waits for a commit of a table: uploaded buffers, in the order of their coming.

Law of this file: values; the rules are those of :mod:`ingester.tables.commits`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ingester.buffer import BufferHandle, FlushJob, PersistedFiles, TableBuffer
from ingester.errors import StoreAway
from persist.manifest import Action, AppliedKey, PartitionKey, TableState


@dataclass(slots=True, eq=False)
class PersistedBuffer:
    """One buffer's files, uploaded and waiting for their commit."""

    job: FlushJob
    files: PersistedFiles
    actions: tuple[Action, ...]
    committed: bool = False
    on_committed: Callable[[], None] = lambda: None
    """Called once in a table without a key, before the release."""
    refused: bool = False
    """It has to be made anew; else, where it was not taken, others of its set have to be."""
    covered_to: int = -1
    """Operations up to this sequence are in other files already."""
    left_out: frozenset[int] = frozenset()
    """Sequences of operations that are not ours to commit any more."""
    base: TableState | None = None
    """The version that it was made for, or has to be made anew for."""

    @property
    def handle(self) -> BufferHandle:
        """The buffer."""
        return self.job.handle

    @property
    def table(self) -> TableBuffer:
        """Whose buffer it is."""
        return self.job.table

    @property
    def partition(self) -> PartitionKey:
        """Where its files go."""
        return self.job.handle.partition

    def applied_key(self, ingester_id: str) -> AppliedKey:
        """Whose operations it has, of which partition."""
        return self.job.applied_key(ingester_id)


@dataclass(slots=True)
class Gate:
    """What serialises one table's manifest, and who waits for the next commit."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    waiting: list[PersistedBuffer] = field(default_factory=list)
    grown: trio.Event = field(default_factory=trio.Event)
    """Set when another one waits."""


def held_back(table: TableBuffer) -> StoreAway:
    """Why a version of others cannot be shown yet."""
    return StoreAway(
        f"table {table.namespace}/{table.name}: its newest version has rows that are still being"
        " persisted here, too; ask again",
        retry_after_s=0.5,
    )
