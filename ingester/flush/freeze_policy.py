"""When a partition's buffer is frozen: by age, or because memory, partitions or the disk run out.

The tree itself freezes a buffer that is large enough. Nothing depends on traffic: the policy
sleeps until the oldest buffer's deadline; pressure and new buffers wake it (tests/flush).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ingester.buffer import Aging, BufferHandle, BufferTree, PartitionBuffer, Why
from ingester.memory.ledger import MemoryLedger
from persist.table import TableKey

CROWDED_PART = 4
"""This fraction of too many partitions is being flushed before more are frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeAges:
    """Ages at which buffers are frozen."""

    max_age_s: float
    max_lag_s: float
    """Age of a buffer that replication started."""

    def of(self, aging: Aging) -> float:
        """Return the age for a buffer: a table's own one only lowers it."""
        at_most = self.max_lag_s if aging.replicated else self.max_age_s
        return at_most if aging.max_age_s is None else min(aging.max_age_s, at_most)


class FreezePolicy:
    """Freezes buffers that are due. Event loop only."""

    def __init__(
        self,
        tree: BufferTree,
        ledger: MemoryLedger,
        ages: FreezeAges,
        *,
        shrink_caches: Callable[[], None],
        make_room: Callable[[], None],
    ) -> None:
        """``make_room``: frees more than ``shrink_caches``, for a batch that was refused for
        memory.
        """
        self._tree = tree
        self._ledger = ledger
        self._ages = ages
        self._shrink_caches = shrink_caches
        self._make_room = make_room
        self._wake = trio.Event()
        self._disk_full = False
        self._crowded: dict[TableKey | str | None, int] = {}
        self._memory_full = False
        self._full_namespaces: set[str] = set()

    def wake(self) -> None:
        """Recompute the deadlines: a buffer was opened, or something else changed."""
        self._wake.set()

    def after_group(self) -> None:
        """Check the low watermark: operations were applied."""
        if self._ledger.used > self._ledger.watermarks.low:
            self._wake.set()

    def relieve_disk(self) -> None:
        """Freeze because the log's disk is full; only flushes free log segments."""
        self._disk_full = True
        self._wake.set()

    def relieve_memory(self, namespace: str | None = None) -> None:
        """Freeze for a batch that was refused for memory, unless enough is being flushed.

        Args:
            namespace: the namespace that has reached its quota; None if the daemon's memory is
                full.
        """
        if namespace is None:
            self._memory_full = True
        else:
            self._full_namespaces.add(namespace)
        self._wake.set()

    def relieve_partitions(self, whose: TableKey | str | None, excess: int = 1) -> None:
        """Freeze the oldest buffers, of a table or of all, until enough of them are being flushed.

        A batch was refused because there are too many partitions.

        Args:
            whose: a table, a namespace, or None for the daemon.
            excess: how many partitions fewer the batch needs.
        """
        self._crowded[whose] = max(excess, self._crowded.get(whose, 1))
        self._wake.set()

    async def run(self) -> None:
        """Freeze due buffers until cancelled."""
        while True:
            self._wake = trio.Event()
            self._freeze_due()
            with trio.move_on_after(self._sleep_s()):
                await self._wake.wait()

    def freeze_all(self, why: Why) -> None:
        for _, partition in list(self._tree.active()):
            self._tree.freeze(partition, why)

    def _sleep_s(self) -> float:
        due_at = min(
            (
                _oldest(buffers).opened_at + self._ages.of(aging)
                for aging, buffers in self._tree.aging.items()
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
        for aging, buffers in list(self._tree.aging.items()):
            due_before = time.monotonic() - self._ages.of(aging)
            while buffers and (oldest := _oldest(buffers)).opened_at <= due_before:
                self._tree.freeze(buffers[oldest], "lag" if aging.replicated else "age")
        if self._ledger.used > self._ledger.watermarks.low:
            self._shrink_caches()
            self._freeze_largest()

    def _freeze_namespaces(self) -> None:
        """Freeze all of the namespaces that have reached their quota and have nothing being
        flushed.
        """
        full, self._full_namespaces = self._full_namespaces, set()
        full = {name for name in full if not self._tree.namespaces.of(name).frozen_bytes}
        for _, partition in list(self._tree.active()):
            if partition.table[0] in full:
                self._tree.freeze(partition, "memory")

    def _freeze_crowded(self) -> None:
        """Freeze the oldest buffers where there are too many, except those being flushed."""
        crowded, self._crowded = self._crowded, {}
        for whose, excess in crowded.items():
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
            stays = live - max(excess, live // CROWDED_PART)
            for partition in mine[: max(0, len(mine) - stays)]:
                self._tree.freeze(partition, "partitions")

    def _freeze_largest(self) -> None:
        """Freeze the largest buffers until the rest is under ``low`` once they are flushed.

        At most half of ``low`` stays active, because other memory is used on top of buffers.
        Namespaces above their share come first.
        """
        ledger = self._ledger
        low = ledger.watermarks.low
        beside = ledger.used - ledger.buffered - ledger.frozen
        enough = min(low // 2, max(0, low - beside))
        if self._ledger.buffered <= enough:
            return  # the rest is being flushed; called again after each group meanwhile
        greedy = self._tree.namespaces.over_shares(ledger.watermarks.high)

        def order(one: tuple[BufferHandle, PartitionBuffer]) -> tuple[bool, int]:
            handle, partition = one
            return partition.table[0] not in greedy, -handle.nbytes

        for _, partition in sorted(self._tree.active(), key=order):
            if self._ledger.buffered <= enough:
                return
            self._tree.freeze(partition, "memory")


def _oldest(buffers: OrderedDict[BufferHandle, PartitionBuffer]) -> BufferHandle:
    return next(iter(buffers))
