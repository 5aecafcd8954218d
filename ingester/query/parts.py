"""Rows cut into the parts that an answer is sent in.

Law of this file: a part is at most :data:`PART_BYTES`, or one row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer.rows import MIXED, Chunk

PART_BYTES = 256 * 1024
AIM_BYTES = PART_BYTES * 15 // 16
"""A part is cut by the average row, so it is aimed lower: uneven rows seldom go over."""
CROWD_BYTES = PART_BYTES * 4 // 8
"""A part is aimed at this size where many clients hold one each."""

SMALL_BYTES = 2 * PART_BYTES
"""A larger chunk is never joined with others: a look at it alone costs no more than the copy."""


class Piece(NamedTuple):
    """Rows that make at most one part."""

    batch: pa.RecordBatch
    nbytes: int
    """The bytes that the rows take on the wire."""


def window(
    batch: pa.RecordBatch,
    start: int,
    stop: int,
    nbytes: int | None = None,
    aim: int = AIM_BYTES,
) -> Piece:
    """Return as many rows from ``start`` on as make a part, at least one; a view, ``start < stop``.

    Cut evenly: each part costs the same to send, whatever its size.

    Args:
        nbytes: of the whole batch, where that is known.
        aim: bytes of a part.
    """
    rows = stop - start
    nbytes = (nbytes or sent_bytes(batch)) * rows // max(1, batch.num_rows)
    part = batch.slice(start, -(-rows // max(1, -(-nbytes // aim))))
    if nbytes <= PART_BYTES // 2 and part.num_rows == batch.num_rows:
        return Piece(part, nbytes)
    while (size := sent_bytes(part)) > PART_BYTES and part.num_rows > 1:
        # At most halved: it may be one large row behind many small ones.
        part = part.slice(0, max(part.num_rows // 2, part.num_rows * AIM_BYTES // size))
    return Piece(part, size)


def sent_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes that the rows take on the wire.

    The figure is about that of ``nbytes`` and comes several times faster, but for a view far into a
    batch.
    """
    size: int = pa.ipc.get_record_batch_size(batch)
    return size


def chunk_at(chunks: Sequence[Chunk], row: int) -> int:
    """Return the index of the chunk that holds a row."""
    return bisect_right(chunks, row, key=lambda chunk: chunk.start) - 1


def rows_at(chunks: Sequence[Chunk], row: int, stop: int) -> pa.RecordBatch:
    """Return the rows from ``row`` on, before ``stop``, that are in the same chunk."""
    start, batch = chunks[chunk_at(chunks, row)][:2]
    return batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start))


def joinable(
    chunks: Sequence[Chunk], stop: int, most_bytes: int = PART_BYTES
) -> tuple[list[pa.RecordBatch], int]:
    """Return the first chunks that may be joined, and their bytes: less than two are not.

    Freshly written rows lie in many small chunks, and each part costs the same whatever its size.
    """
    batches: list[pa.RecordBatch] = []
    nbytes, schema_number = 0, chunks[0].schema_number
    if schema_number == MIXED:
        return batches, nbytes
    for chunk in chunks:
        ends_inside = chunk.start + chunk.batch.num_rows <= stop
        if chunk.nbytes > SMALL_BYTES or chunk.schema_number != schema_number or not ends_inside:
            break
        if nbytes + chunk.nbytes > most_bytes:
            break
        batches.append(chunk.batch)
        nbytes += chunk.nbytes
    return batches, nbytes


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in memory of their own, of just their size."""
    if batch.num_columns == 0:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Give all parts of a batch as views, in order."""
    start = 0
    while start < batch.num_rows:
        part = window(batch, start, batch.num_rows).batch
        yield part
        start += part.num_rows
