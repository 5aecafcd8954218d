"""Finished flushes of one table whose files nobody ever looks at."""

from __future__ import annotations

import pyarrow as pa

from ingester.buffer import (
    AtomicFlush,
    BufferHandle,
    FlushJob,
    PartitionBuffer,
    PersistedFiles,
    TableBuffer,
)
from ingester.tables.commit_schedule import FinishedFlush
from persist.manifest import Action, TableState, apply
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

DEFINITION = TableDefinition(pa.schema({"n": pa.int64()}), UNPARTITIONED)
TABLE = TableBuffer("ns", "t", apply(TableState(), DEFINITION.actions()))


class NoRemaker:
    """Makes nothing anew."""

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        raise NotImplementedError

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        raise NotImplementedError


def frozen(number: int, nbytes: int = 1_000, *, keyed: bool = False) -> BufferHandle:
    """A frozen buffer of so many bytes."""
    partition = (1, (number,))
    handle = BufferHandle(partition, keyed=keyed, epoch=1, first_seq=number, segment=1)
    handle.rows.nbytes = nbytes
    handle.freeze(0.0)
    return handle


def job_of(handle: BufferHandle, atomic: AtomicFlush | None = None) -> FlushJob:
    """What the freeze of the buffer hands out."""
    return FlushJob(TABLE, PartitionBuffer(TABLE.key, handle.partition), handle, atomic)


def finished(job: FlushJob) -> FinishedFlush:
    """Its files, uploaded."""
    return FinishedFlush(job, 0.0, PersistedFiles((), ()), (), TABLE.state, NoRemaker())
