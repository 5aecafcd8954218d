"""Finished flushes of one table, with files that are never read."""

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
    """Encodes no flush again."""

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        raise NotImplementedError

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        raise NotImplementedError


def frozen(number: int, nbytes: int = 1_000, *, keyed: bool = False) -> BufferHandle:
    """A frozen buffer of ``nbytes`` bytes."""
    partition = (1, (number,))
    handle = BufferHandle(partition, keyed=keyed, epoch=1, first_seq=number, segment=1)
    handle.rows.nbytes = nbytes
    handle.freeze(0.0)
    return handle


def job_of(handle: BufferHandle, atomic: AtomicFlush | None = None) -> FlushJob:
    """The job that the freeze of the buffer returns."""
    return FlushJob(TABLE, PartitionBuffer(TABLE.key, handle.partition), handle, atomic)


def finished(job: FlushJob) -> FinishedFlush:
    """The job with its files uploaded."""
    return FinishedFlush(job, 0.0, PersistedFiles((), ()), (), TABLE.state, NoRemaker())
