"""Opens the room: the path of a batch, from admission into the log and on to the buffers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingester.config.levels import AckLevels
from ingester.dml.record import shrink
from ingester.tables.opening import Shared, TableParts
from ingester.write.admission import AdmissionControl, DiskRoom, QueueRoom, Relief
from ingester.write.checkpoints import CheckpointCalls
from ingester.write.coalescer import Coalescer
from ingester.write.dedup import Deduplication
from ingester.write.operation_log import OperationLog, log_refusal
from ingester.write.operation_maker import OperationMaker
from ingester.write.partition_room import PartitionRoom
from ingester.write.stream import Post, WritePath
from ingester.write.streams import Writes
from ingester.write.transform.transforms import Transforms
from persist.table import TableKey
from wal import Log, LogError

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace


NO_DISK_BYTES = 1 << 62
"""The room of a log that keeps nothing on disk."""


@dataclass(frozen=True, slots=True)
class WriteHooks:
    """Functions of other rooms that writes call."""

    relief: Relief
    """Makes room when a batch is refused for memory or disk."""
    relieve_partitions: Callable[[TableKey | str | None, int], None]
    """Flushes buffers when a batch finds too many partitions. On the loop."""
    queued_bytes: Callable[[], int]
    """Returns the bytes waiting to be flushed."""
    on_group: Callable[[int, int, Sequence[WriteTrace]], None]
    """Receives operations, bytes and traces of each applied group commit."""
    make_post: Callable[[], Post]
    """Returns a function that calls another one on the loop."""


@dataclass(frozen=True, slots=True)
class WriteParts:
    """The parts that other rooms use."""

    wal: Log
    admission: AdmissionControl
    operation_log: OperationLog
    partition_room: PartitionRoom
    schema_numbers: Iterator[int]
    """A number for each schema of incoming rows."""
    transforms: Transforms
    writes: Writes
    checkpoint_calls: CheckpointCalls
    coalescer: Callable[[], Coalescer]
    """Makes the coalescer of small batches, for the thread that writes the log."""

    async def begin_segment(self) -> None:
        """Begin a log segment, which repeats what is applied of each origin.

        Raises:
            DiskFull, Stopping, InternalFailure: the log cannot.
        """
        try:
            await self.wal.rotate(force=True)
        except LogError as exc:
            raise log_refusal(exc) from exc


def open_write(shared: Shared, tables: TableParts, hooks: WriteHooks) -> WriteParts:
    """Return the parts of a daemon without writers. On the loop."""
    settings, wal, writer, metrics = shared.settings, shared.wal, shared.writer, shared.metrics
    tree = tables.tree
    log = OperationLog(wal, tree, epoch=writer.epoch, relief=hooks.relief, on_group=hooks.on_group)
    log.shipper = shared.store_log.shipper
    has_disk = settings.wal.disk == "on"
    admission = AdmissionControl(
        shared.ledger,
        DiskRoom(
            settings.data_dir,
            settings.wal.segment_bytes,
            lambda: wal.certain_bytes if has_disk else NO_DISK_BYTES,
        ),
        QueueRoom(hooks.queued_bytes, settings.persist.queue_bytes),
        shared.namespaces,
    )
    post = hooks.make_post()
    partition_room = PartitionRoom(
        tree, settings.limits, lambda whose, excess: post(hooks.relieve_partitions, whose, excess)
    )
    path = WritePath(
        admission=admission,
        dedup=Deduplication(
            tables.origins, log.append, shrink, tree.definition_of, log.append_barrier
        ),
        log=log,
        metrics=metrics,
        origins=tables.origins,
        relief=hooks.relief,
        checkpoints=tree.checkpoints,
        partitions=partition_room,
        epoch=writer.epoch,
        upto=tree.upto,
        levels=AckLevels(settings),
    )
    most_bytes, numbers = settings.flight.max_batch_bytes, itertools.count(1)
    transforms = Transforms(settings.transform, settings.tables, most_bytes, metrics.transformed)

    def coalescer() -> Coalescer:
        return Coalescer(log, metrics, OperationMaker(most_bytes), hooks.make_post())

    return WriteParts(
        wal,
        admission,
        log,
        partition_room,
        numbers,
        transforms,
        Writes(tables.catalog, tables.takeover, path, numbers, transforms),
        CheckpointCalls(tables.catalog, path, numbers),
        coalescer,
    )
