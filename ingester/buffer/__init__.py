"""The memtables: namespace, table, partition, and in each partition the unflushed rows.

    BufferTree ── TableBuffer ── PartitionBuffer ── BufferHandle (active, frozen, …, released)
                                                           │
                              BufferedRows, Parquet files, or a spill file

``tree`` applies a write: it finds the table and partitions (``table``) and appends to each
partition's active buffer (``handle``), whose rows are in ``rows``. Rows of several partitions that
arrived in one message share its memory (``shared_memory``). A freeze moves the buffer to the
partition's queue of frozen buffers and returns a `FlushJob`; the buffer stays readable until a
manifest version with its files is installed. Snapshots pin handles, not rows, so a release takes
nothing from a reader. The `WriteLatch` keeps plain writes to a keyed table away from a transaction
that reads before it writes.

Nothing here writes a file or uses the store. Start reading at ``handle``, whose states are a
buffer's life, then ``tree``.
"""

from ingester.buffer.handle import (
    BufferHandle,
    BufferState,
    FlushedRows,
    IllegalTransition,
    PersistedFiles,
    Pin,
)
from ingester.buffer.rows import BufferedRows, Chunk
from ingester.buffer.table import AtomicFlush, FlushJob, PartitionBuffer, RowsToFlush, TableBuffer
from ingester.buffer.tree import Aging, BufferTree, FreezeLimits, TreeHooks, Why

__all__ = [
    "Aging",
    "AtomicFlush",
    "BufferHandle",
    "BufferState",
    "BufferTree",
    "BufferedRows",
    "Chunk",
    "FlushJob",
    "FlushedRows",
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
