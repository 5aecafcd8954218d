"""The memtables: namespace, table, partition, and in each partition the rows not yet in files.

    BufferTree ── TableBuffer ── PartitionBuffer ── BufferHandle (active, frozen, …, released)
                                                           │
                              BufferedRows, Parquet files, or a spill file

A write comes in at ``tree``, which finds its table (``table``) and partitions (``partition``) and
appends to each partition's active buffer (``handle``), whose rows lie in ``rows``. A freeze moves
the buffer to the partition's queue of frozen ones and hands out a ``flush_job``; the buffer stays
readable until a manifest version that has its files is installed. Snapshots pin handles and not
rows, so that a release takes nothing from under a reader. ``write_latch`` keeps plain writes to a
keyed table away from a transaction that reads before it writes.

Nothing here writes a file, talks to the store or waits for either. Start reading at ``handle``,
whose states say what a buffer goes through; then ``tree``.
"""

from ingester.buffer.flush_job import AtomicFlush, FlushJob, RowsToFlush
from ingester.buffer.handle import (
    BufferHandle,
    BufferState,
    FileRows,
    IllegalTransition,
    PersistedFiles,
    Pin,
)
from ingester.buffer.partition import PartitionBuffer
from ingester.buffer.rows import BufferedRows, Chunk
from ingester.buffer.table import TableBuffer
from ingester.buffer.tree import BufferTree, FreezeLimits, TreeHooks, Why

__all__ = [
    "AtomicFlush",
    "BufferHandle",
    "BufferState",
    "BufferTree",
    "BufferedRows",
    "Chunk",
    "FileRows",
    "FlushJob",
    "FreezeLimits",
    "IllegalTransition",
    "PartitionBuffer",
    "PersistedFiles",
    "Pin",
    "RowsToFlush",
    "TableBuffer",
    "TreeHooks",
    "Why",
]
