"""The rows of one buffer, in log order, in a small number of chunks.

Rows are appended and never moved; a row's number never changes, so a reader needs only a
position. Small batches are merged sixteen to one as they arrive, like the levels of a log-
structured merge tree: a row is copied at most once per level, and only while its chunk is small.
A million one-row operations cost little more than the same rows in one batch. Once a buffer is
complete, its chunks can be made larger for sorting. A chunk that is a slice of a message with the
rows of several partitions keeps all of it alive; it is copied when it is merged, or soon after.

The event loop appends and other threads read. Readers use single reads of one list, which
CPython makes atomic, and chunks, which are immutable (tests/buffer).
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate, islice
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer.shared_memory import SharedMemory
from ingester.dml.ipc import compact
from ingester.dml.operation import RowCounts

FAN_OUT = 16
CHUNK_ROWS = 4096
CHUNK_BYTES = 16 * 1024
"""Larger chunks are not merged, so a merge on the loop copies at most sixteen times this."""

TOP_LEVEL = 3
MIXED = -1

CHUNK_OVERHEAD_BYTES = 1024
"""Size of a chunk's Python and C++ objects, counted against the memory limit."""

OPERATION_BYTES = 16
"""Bytes kept per operation: its sequence and the end of its rows."""


class Chunk(NamedTuple):
    """Rows ``start..start + batch.num_rows - 1`` of the buffer."""

    start: int
    batch: pa.RecordBatch
    schema_number: int
    """Equal for equal schemas; :data:`MIXED` after merging different ones."""
    nbytes: int
    level: int
    """0 for up to 15 rows, 1 for up to 255, …; chunks of the top level are not merged."""
    memory: SharedMemory | None = None
    """The memory of other rows that the batch keeps alive; its size there is ``nbytes``."""


class BufferedRows:
    """Append-only rows with the operation that each of them came from."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self.mixed = False
        """Whether the rows are known to differ in their columns."""
        self._chunks: list[Chunk] = []
        self._replacing = threading.Lock()
        """Held while a chunk is replaced in a buffer that may be complete."""
        self._enlarged: list[tuple[SharedMemory, int]] = []
        """The shared memory of chunks that were joined in a complete buffer, and their bytes."""
        self._sequences = array("Q")
        self._ends = array("Q")

    def append(
        self,
        batch: pa.RecordBatch,
        *,
        seq: int,
        nbytes: int,
        schema_number: int,
        row_counts: RowCounts | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        """Append the rows of an operation or of a coalesced batch.

        Atomic: no await; readers see all of it or nothing.

        Args:
            nbytes: the batch's size, computed outside the loop.
            schema_number: equal numbers mean equal schemas.
            row_counts: for a coalesced batch, whose first operation has sequence ``seq``.
            memory: what the batch keeps alive until it is merged, or by :meth:`compact`.
        """
        rows = batch.num_rows
        level = _level(rows, nbytes)
        chunk = Chunk(self.rows, batch, schema_number, nbytes, level, memory)
        if self._chunks and schema_number != self._chunks[-1].schema_number:
            self.mixed = True
        operations = 1
        if row_counts is None:
            self._sequences.append(seq)
            self._ends.append(self.rows + rows)
        else:
            operations = len(row_counts)
            self._sequences.extend([seq + number for number, _ in row_counts])
            ends = accumulate((count for _, count in row_counts), initial=self.rows)
            self._ends.extend(islice(ends, 1, None))
        smaller = self._smaller_than(chunk.level)
        if chunk.level == TOP_LEVEL and len(self._chunks) - smaller > 1:
            self._merge(smaller)
        self._chunks.append(chunk)
        self.nbytes += nbytes + CHUNK_OVERHEAD_BYTES + OPERATION_BYTES * operations
        if chunk.level < TOP_LEVEL and len(self._chunks) - smaller > 1:
            # Levels always decrease towards the end: smaller chunks are merged with what follows
            # them.
            self._merge(smaller)
        self._merge_full_runs()
        self.rows += rows

    def chunks(self) -> list[Chunk]:
        """Return all current chunks. Thread-safe."""
        return list(self._chunks)

    def batches(self) -> list[pa.RecordBatch]:
        """Return all rows in log order."""
        return [chunk.batch for chunk in self.chunks()]

    def compact(self, start: int) -> int:
        """Copy the chunk that begins at row ``start`` if it keeps the memory of other rows alive.

        On the loop. Returns by how much ``nbytes`` grows.
        """
        with self._replacing:
            at = bisect_left(self._chunks, start, key=attrgetter("start"))
            if at == len(self._chunks) or (old := self._chunks[at]).start != start:
                return 0
            if old.memory is None:
                return 0
            batch = compact(old.batch)
            nbytes = int(batch.get_total_buffer_size())
            self._chunks[at] = old._replace(batch=batch, nbytes=nbytes, memory=None)
        old.memory.leave(old.nbytes)
        self.nbytes += nbytes - old.nbytes
        return nbytes - old.nbytes

    def leave(self) -> None:
        """Note that the rows are not used any more. On the loop."""
        for chunk in self._chunks:
            if chunk.memory is not None:
                chunk.memory.leave(chunk.nbytes)
        for memory, nbytes in self._enlarged:
            memory.leave(nbytes)

    def enlarge_chunks(self, chunk_bytes: int) -> Iterator[int]:
        """Join neighbouring chunks of one schema to chunks of this size, step by step.

        For a single thread, once the buffer is complete. The counted size does not change.

        Yields:
            The number of bytes copied, and freed, in each step.
        """
        chunks, start = self._chunks, 0
        while start < len(chunks):
            first, nbytes, stop = chunks[start], chunks[start].nbytes, start + 1
            while (
                stop < len(chunks)
                and chunks[stop].schema_number == first.schema_number != MIXED
                and nbytes + chunks[stop].nbytes <= chunk_bytes
            ):
                nbytes += chunks[stop].nbytes
                stop += 1
            if stop - start > 1:
                batch = _joined(chunks[start:stop])
                size = int(batch.nbytes)
                joined = Chunk(first.start, batch, first.schema_number, size, TOP_LEVEL)
                with self._replacing:
                    self._enlarged += [
                        (old.memory, old.nbytes)
                        for old in chunks[start:stop]
                        if old.memory is not None
                    ]
                    chunks[start:stop] = [joined]
                yield nbytes
            start += 1

    def row_after(self, seq: int) -> int:
        """Return the first row of the operations after ``seq``; the number of rows if there are
        none. Thread-safe.
        """
        index = bisect_right(self._sequences, seq)
        return self._ends[index - 1] if index else 0

    def span(self, after_seq: int, upto_seq: int) -> tuple[int, int] | None:
        """Return the first and last sequence in ``after_seq + 1..upto_seq``, or None. Thread-
        safe.
        """
        first = bisect_right(self._sequences, after_seq)
        behind = bisect_right(self._sequences, upto_seq)
        return (self._sequences[first], self._sequences[behind - 1]) if first < behind else None

    def slices_without(self, after_seq: int, left_out: Collection[int]) -> list[tuple[int, int]]:
        """Return the rows of operations after ``after_seq`` that are not left out.

        Returns:
            (first row, number of rows) of each run, in order; one run if nothing is left out.
        """
        start = bisect_right(self._sequences, after_seq)
        begin = self._ends[start - 1] if start else 0
        if not left_out:
            return [(begin, self.rows - begin)] if self.rows > begin else []
        runs: list[tuple[int, int]] = []
        for seq, end in zip(self._sequences[start:], self._ends[start:], strict=True):
            if seq not in left_out and end > begin:
                if runs and sum(runs[-1]) == begin:
                    runs[-1] = (runs[-1][0], runs[-1][1] + end - begin)
                else:
                    runs.append((begin, end - begin))
            begin = end
        return runs

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def _smaller_than(self, level: int) -> int:
        """Return the index from which all chunks are smaller than ``level``."""
        first = len(self._chunks)
        while first and self._chunks[first - 1].level < level:
            first -= 1
        return first

    def _merge_full_runs(self) -> None:
        chunks = self._chunks
        while len(chunks) >= FAN_OUT:
            level = chunks[-1].level
            # Levels decrease towards the end, so the run is complete if its first chunk has the
            # level.
            if level >= TOP_LEVEL or chunks[-FAN_OUT].level != level:
                return
            self._merge(len(chunks) - FAN_OUT)

    def _merge(self, first: int) -> None:
        """Replace the chunks from ``first`` by one with the columns of all of them."""
        old = self._chunks[first:]
        batch = _joined(old)
        nbytes = int(batch.get_total_buffer_size())
        new = Chunk(old[0].start, batch, _common(old), nbytes, _level(batch.num_rows, nbytes))
        saved = sum(chunk.nbytes for chunk in old) - nbytes
        self.nbytes -= saved + (len(old) - 1) * CHUNK_OVERHEAD_BYTES
        self._chunks[first:] = [new]
        for chunk in old:
            if chunk.memory is not None:
                chunk.memory.leave(chunk.nbytes)


def _common(run: list[Chunk]) -> int:
    """Return the chunks' schema number, or MIXED if they differ."""
    first = run[0].schema_number
    return first if all(chunk.schema_number == first for chunk in run) else MIXED


def _joined(run: list[Chunk]) -> pa.RecordBatch:
    if _common(run) != MIXED:
        return pa.concat_batches([chunk.batch for chunk in run])
    tables = [pa.Table.from_batches([chunk.batch]) for chunk in run]
    return pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()[0]


def _level(rows: int, nbytes: int) -> int:
    if rows >= CHUNK_ROWS or nbytes >= CHUNK_BYTES:
        return TOP_LEVEL
    return (rows.bit_length() - 1) // 4 if rows else 0
