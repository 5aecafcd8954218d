"""The snapshot that an answer holds: a manifest version and a prefix of each buffer.

A snapshot with buffers is taken under its table's lock, so it contains everything applied before
it and nothing later; the caller makes sure that everything acknowledged is applied. It holds
positions, not rows: buffers released while it is read are replaced by their files or a spill
(:mod:`ingester.buffer.handle`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingester.buffer import Pin, TableBuffer
from persist.manifest import Add, ColumnStats, PartitionKey, TableState
from persist.partitioning import PartitionValues, folder_of
from persist.partitioning.spec import partition_bounds
from persist.table import TableDefinition


@dataclass(frozen=True, slots=True)
class Replaced:
    """Changes of a keyed partition's files since a version."""

    removed: tuple[Add, ...]
    """Files of that version that no longer exist."""
    added: tuple[Add, ...]
    """Files that replaced them. A key in none of them, and in no buffer, was deleted."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition's rows in a snapshot."""

    spec_id: int
    values: PartitionValues
    files: Sequence[Add]
    pins: tuple[Pin, ...]
    replaced: Replaced | None = None

    def name(self, definition: TableDefinition) -> str:
        """Return the partition folder's name, which is sent with each part."""
        return folder_of(definition.spec_of(self.spec_id), self.values)

    def bounds(self, definition: TableDefinition) -> dict[str, ColumnStats]:
        """Return the column values that the partition implies."""
        return partition_bounds(definition.spec_of(self.spec_id), self.values, definition.schema)


@dataclass(slots=True)
class Snapshot:
    """A table at one moment. Must be closed: its pins cost disk space once their buffers are
    released.
    """

    definition: TableDefinition
    version: int
    sequence: int
    files: Iterable[tuple[PartitionKey, Sequence[Add]]]
    pins: dict[PartitionKey, tuple[Pin, ...]]
    table_version: int = 1
    """The table version that the files belong to."""
    replaced: Mapping[PartitionKey, Replaced] = field(default_factory=dict)
    taken_version: int | None = None
    """Since which manifest version the daemon owns the origin that it took over last, or is missing
    rows that another daemon took over; 0 in earlier table versions. Only buffered answers report
    it; otherwise None."""
    closed: bool = field(default=False)

    def partitions(self) -> Iterator[PartitionView]:
        """Return all partitions, those with files first."""
        left, replaced = dict(self.pins), dict(self.replaced)
        for key, files in self.files:
            yield PartitionView(*key, files, left.pop(key, ()), replaced.pop(key, None))
        for key, pins in left.items():
            yield PartitionView(*key, (), pins, replaced.pop(key, None))
        for key, one in replaced.items():
            yield PartitionView(*key, (), (), one)

    def close(self) -> None:
        """Release everything. Thread-safe and idempotent."""
        self.closed = True
        for pins in self.pins.values():
            for pin in pins:
                pin.close()


Upto = Callable[[TableBuffer], int]
"""Returns a table's position; :meth:`ingester.buffer.BufferTree.upto`."""


def snapshot_all(table: TableBuffer, upto: Upto) -> Snapshot:
    """Take files, buffers, and the sequence up to which they are complete. Thread-safe."""
    with table.lock:
        return Snapshot(
            definition=table.definition,
            version=table.state.version,
            # Read under the lock, so the buffers contain no later operation of this table.
            sequence=upto(table),
            files=table.state.partitions.items(),
            pins=_pins(table),
            table_version=table.state.table_version,
        )


def snapshot_buffered(
    table: TableBuffer,
    upto: Upto,
    version: int,
    persisted_since: Sequence[Add],
    before: TableState | None = None,
) -> Snapshot:
    """Take buffers, and the files that this daemon's flushes added after ``version``.

    Args:
        before: that version's state, for a keyed table if it is not the newest.
    """
    files: dict[PartitionKey, tuple[Add, ...]] = {}
    for add in persisted_since:
        files[add.partition] = (*files.get(add.partition, ()), add)
    with table.lock:
        table_version, taken = table.moved
        return Snapshot(
            definition=table.definition,
            version=version,
            taken_version=taken if table_version == table.state.table_version else 0,
            sequence=upto(table),
            files=list(files.items()),
            pins=_pins(table),
            table_version=table.state.table_version,
            replaced={} if before is None else _replaced(before, table.state),
        )


def snapshot_version(state: TableState, sequence: int) -> Snapshot:
    """Take exactly the files of one manifest version."""
    return Snapshot(
        definition=TableDefinition.of_state(state),
        version=state.version,
        sequence=sequence,
        files=state.partitions.items(),
        pins={},
        table_version=state.table_version,
    )


def _replaced(before: TableState, now: TableState) -> dict[PartitionKey, Replaced]:
    found: dict[PartitionKey, Replaced] = {}
    for key, files in before.partitions.items():
        removed = tuple(add for add in files if add.path not in now.files)
        if removed:
            there = now.partitions.get(key, ())
            added = tuple(add for add in there if add.path not in before.files)
            found[key] = Replaced(removed, added)
    return found


def _pins(table: TableBuffer) -> dict[PartitionKey, tuple[Pin, ...]]:
    return {
        key: tuple(handle.pin() for handle in partition.handles())
        for key, partition in table.partitions.items()
    }
