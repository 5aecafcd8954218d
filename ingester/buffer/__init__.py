"""The buffer tree: namespace, table, partition, and in each partition the rows not yet in files.

    BufferTree ── TableBuffer ── PartitionBuffer ── BufferHandle (active, frozen, released)
                                                           │
                              BufferedRows, Parquet files, or a spill file

Writes go to a partition's active buffer. A freeze moves it to the partition's queue of frozen
buffers, from where a persist worker takes it; it stays readable until the manifest version that has
its file is installed. Snapshots pin handles and not rows: see :mod:`ingester.buffer.handle`.
"""

from ingester.buffer.handle import AtomicFlush, BufferHandle, FileRows, PersistedFiles, Pin
from ingester.buffer.partition import PartitionBuffer, PartitionKey
from ingester.buffer.rows import BufferedRows, Chunk
from ingester.buffer.table import TableBuffer
from ingester.buffer.tree import BufferTree, Why

__all__ = [
    "AtomicFlush",
    "BufferHandle",
    "BufferTree",
    "BufferedRows",
    "Chunk",
    "FileRows",
    "PartitionBuffer",
    "PartitionKey",
    "PersistedFiles",
    "Pin",
    "TableBuffer",
    "Why",
]
