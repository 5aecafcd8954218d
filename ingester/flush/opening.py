"""Opens the room: the freeze policy, the flusher, and what removes log segments."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.errors import InternalFailure, TooSlow
from ingester.flush.file_writer import FileWriter
from ingester.flush.flusher import FlushCounts, Flusher, FlushHooks, Unencodable
from ingester.flush.freeze_policy import FreezeAges, FreezePolicy
from ingester.flush.log_truncation import CheckpointCommitter, LogTruncation
from ingester.observability.status import PersistStatus
from ingester.tables.catalog import Catalog
from ingester.tables.opening import Shared, TableParts
from persist.parquet.copy_on_write import RewriteLimits


@dataclass(frozen=True, slots=True)
class FlushParts:
    """The parts that other rooms use."""

    catalog: Catalog
    tree: BufferTree
    counts: FlushCounts
    flusher: Flusher
    freeze_policy: FreezePolicy
    log_truncation: LogTruncation
    checkpoint_committer: CheckpointCommitter

    @property
    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The functions that run for as long as the daemon."""
        return (
            self.flusher.run,
            self.freeze_policy.run,
            self.checkpoint_committer.run,
            self.log_truncation.run,
        )

    def statistics(self) -> PersistStatus:
        """Return the waiting, running and finished flushes."""
        return self.counts.add_to(self.flusher.statistics())

    async def persist(
        self, namespace: str | None, table: str | None, timeout_s: float
    ) -> list[TableBuffer]:
        """Commit everything acknowledged before the call; return the tables it concerns.

        Raises:
            UnknownTable: the table does not exist.
            TooSlow: it is not done in time; the flushes continue.
            InternalFailure: a buffer cannot be encoded.
        """
        tables = await self.catalog.chosen(namespace, table)
        waiting: set[BufferHandle] = set()
        for chosen in tables:
            for partition in list(chosen.partitions.values()):
                self.tree.freeze(partition)
                waiting.update(partition.frozen)

        began = time.monotonic()
        self.flusher.retry_now()

        def failed() -> list[Unencodable]:
            return [
                each
                for each in self.flusher.unencodable()
                if each.job.handle in waiting and each.at >= began
            ]

        with trio.move_on_after(timeout_s):
            for handle in waiting:
                await self.flusher.until_released(handle, lambda: bool(failed()))
                if found := failed():
                    raise InternalFailure(
                        f"persist: {found[0]}; the rows stay readable and in the log, and are tried"
                        " again"
                    )
            await self.checkpoint_committer.until_committed(tables)
            return tables
        left = len([handle for handle in waiting if not handle.released])
        raise TooSlow(
            f"persist: {left} of {len(waiting)} buffers are not in files after {timeout_s:g} s;"
            " the flushes continue"
        )


def open_flush(
    shared: Shared,
    tables: TableParts,
    *,
    shrink_caches: Callable[[], None],
    make_room: Callable[[], None],
) -> FlushParts:
    """Return the parts of a daemon without frozen buffers. On the loop.

    Args:
        shrink_caches: drops what can be read again: memory is short.
        make_room: drops what can be dropped: a batch has been refused for memory.
    """
    settings, ledger, metrics = shared.settings, shared.ledger, shared.metrics
    persist, tree = settings.persist, tables.tree
    counts = FlushCounts(metrics)
    limits = RewriteLimits.within(settings.memory.limit, persist.target_file_bytes)
    flusher = Flusher(
        tables.catalog,
        ledger,
        FileWriter(shared.store, shared.writer, limits),
        FlushHooks(counts.flushed, counts.failed),
        workers=persist.workers,
    )
    ages = FreezeAges(max_age_s=persist.max_age, max_lag_s=settings.replication.max_lag)
    freeze_policy = FreezePolicy(
        tree, ledger, ages, shrink_caches=shrink_caches, make_room=make_room
    )
    truncation = LogTruncation(
        shared.wal, tree, flusher, metrics.segments_removed, shared.store_log
    )
    checkpoints = CheckpointCommitter(
        tables.catalog.commits, tree, persist.max_age, truncation.truncate
    )
    return FlushParts(tables.catalog, tree, counts, flusher, freeze_policy, truncation, checkpoints)
