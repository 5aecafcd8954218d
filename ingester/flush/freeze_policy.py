"""The policy of freezing a partition's buffer: by its age, and where memory or a disk is full.

The tree itself freezes a buffer that is large enough.

Law of this file: nothing depends on traffic. The oldest buffer's deadline is slept towards;
pressure and new buffers wake the loop; nobody polls.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ingester.buffer import BufferHandle, BufferTree, PartitionBuffer, Why
from ingester.memory.ledger import MemoryLedger
from persist.table import TableKey

CROWDED_PART = 4
"""The part of too many partitions that is on its way to files before more of them are frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeAges:
    """The ages at which buffers are frozen."""

    max_age_s: float
    max_lag_s: float
    """The age of a buffer that replication began."""


class FreezePolicy:
    """Freezes buffers that are due. Loop only."""

    def __init__(
        self,
        tree: BufferTree,
        ledger: MemoryLedger,
        ages: FreezeAges,
        *,
        shrink_caches: Callable[[], None],
        make_room: Callable[[], None],
    ) -> None:
        """``make_room`` lets go of more than ``shrink_caches``, for a batch that finds no room."""
        self._tree = tree
        self._ledger = ledger
        self._ages: list[tuple[OrderedDict[BufferHandle, PartitionBuffer], float, Why]] = [
            (tree.by_age, ages.max_age_s, "age"),
            (tree.by_lag, ages.max_lag_s, "lag"),
        ]
        self._shrink_caches = shrink_caches
        self._make_room = make_room
        self._wake = trio.Event()
        self._disk_full = False
        self._crowded: set[TableKey | str | None] = set()
        self._memory_full = False
        self._full_namespaces: set[str] = set()

    def wake(self) -> None:
        """Look at the deadlines again: a buffer was opened, or something else has changed."""
        self._wake.set()

    def after_group(self) -> None:
        """Look at the low watermark: operations were applied."""
        if self._ledger.used > self._ledger.watermarks.low:
            self._wake.set()

    def relieve_disk(self) -> None:
        """Freeze for room on the log's disk, which is full: only flushes give it back."""
        self._disk_full = True
        self._wake.set()

    def relieve_memory(self, namespace: str | None = None) -> None:
        """Freeze for a batch that found no room: what is not on its way to a file has to go now.

        Args:
            namespace: the one that has as much as it may have; None where the daemon has.
        """
        if namespace is None:
            self._memory_full = True
        else:
            self._full_namespaces.add(namespace)
        self._wake.set()

    def relieve_partitions(self, whose: TableKey | str | None) -> None:
        """Freeze the oldest of a table's buffers, or of all, until a part of them is on its way.

        A batch found no room for its partitions, of which there are too many.

        Args:
            whose: a table, a namespace, or None for the daemon.
        """
        self._crowded.add(whose)
        self._wake.set()

    async def run(self) -> None:
        """Freeze what is due until cancelled."""
        while True:
            self._wake = trio.Event()
            self._freeze_due()
            with trio.move_on_after(self._sleep_s()):
                await self._wake.wait()

    def freeze_all(self, why: Why) -> None:
        """Freeze every active buffer."""
        for _, partition in list(self._tree.active()):
            self._tree.freeze(partition, why)

    def _sleep_s(self) -> float:
        due_at = min(
            (
                handle.opened_at + age_s
                for aging, age_s, _ in self._ages
                if (handle := _oldest(aging))
            ),
            default=float("inf"),
        )
        return max(0.0, due_at - time.monotonic())

    def _freeze_due(self) -> None:
        short = self._full_namespaces and self._ledger.used > self._ledger.watermarks.low
        if self._memory_full or short:
            self._make_room()
        if self._disk_full or (self._memory_full and not self._ledger.frozen):
            self.freeze_all("disk" if self._disk_full else "memory")
        self._disk_full = self._memory_full = False
        if self._full_namespaces:
            self._freeze_namespaces()
        self._freeze_crowded()
        for aging, age_s, why in self._ages:
            due_before = time.monotonic() - age_s
            while (oldest := _oldest(aging)) is not None and oldest.opened_at <= due_before:
                self._tree.freeze(aging[oldest], why)
        if self._ledger.used > self._ledger.watermarks.low:
            self._shrink_caches()
            self._freeze_largest()

    def _freeze_namespaces(self) -> None:
        """Freeze all of the namespaces that have as much as they may, and nothing on its way."""
        full, self._full_namespaces = self._full_namespaces, set()
        full = {name for name in full if not self._tree.namespaces.of(name).frozen_bytes}
        for _, partition in list(self._tree.active()):
            if partition.table[0] in full:
                self._tree.freeze(partition, "memory")

    def _freeze_crowded(self) -> None:
        """Freeze the oldest where there are too many, but for those that are on their way."""
        crowded, self._crowded = self._crowded, set()
        for whose in crowded:
            mine = [
                partition
                for _, partition in self._tree.active()
                if whose in (None, partition.table, partition.table[0])
            ]
            if whose is None:
                live = self._tree.live_partitions
            elif isinstance(whose, str):
                live = self._tree.namespaces.of(whose).partitions
            else:
                live = len(self._tree.tables[whose].partitions)
            stays = live - max(1, live // CROWDED_PART)
            for partition in mine[: max(0, len(mine) - stays)]:
                self._tree.freeze(partition, "partitions")

    def _freeze_largest(self) -> None:
        """Freeze the largest buffers until the rest, once they are flushed, is under ``low``.

        At most half of ``low`` stays active: what is not a buffer comes on top of it. Those of
        namespaces with more than their share come first.
        """
        ledger = self._ledger
        low = ledger.watermarks.low
        beside = ledger.used - ledger.buffered - ledger.frozen
        enough = min(low // 2, max(0, low - beside))
        if self._ledger.buffered <= enough:
            return  # the rest is on its way already; asked after every group while it is
        greedy = self._tree.namespaces.over_shares(ledger.watermarks.high)

        def order(one: tuple[BufferHandle, PartitionBuffer]) -> tuple[bool, int]:
            handle, partition = one
            return partition.table[0] not in greedy, -handle.nbytes

        for _, partition in sorted(self._tree.active(), key=order):
            if self._ledger.buffered <= enough:
                return
            self._tree.freeze(partition, "memory")


def _oldest(aging: OrderedDict[BufferHandle, PartitionBuffer]) -> BufferHandle | None:
    return next(iter(aging), None)
