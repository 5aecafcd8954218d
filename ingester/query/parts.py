"""Rows cut into the parts that an answer is sent in.

Law of this file: a part is at most :data:`PART_BYTES`, or one row. A part that is cut from
something larger is copied out of it, so that a client that stops reading holds that part in the
server and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

PART_BYTES = 256 * 1024


def window(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """As many rows from ``start`` on as make a part, at least one; a view, ``start < stop``."""
    average = max(1, batch.nbytes // max(1, batch.num_rows))
    part = batch.slice(start, min(stop - start, max(1, PART_BYTES // average)))
    while part.num_rows > 1 and part.nbytes > PART_BYTES:
        part = part.slice(0, part.num_rows // 2)
    return part


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own, of just their size."""
    if batch.num_columns == 0:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """All parts of a batch as views, in order."""
    start = 0
    while start < batch.num_rows:
        part = window(batch, start, batch.num_rows)
        yield part
        start += part.num_rows
