"""Batches of a size that a daemon takes, from those that nobody has drawn lines in. Pure.

A record batch that a caller hands over is one operation and is never cut. A table is: as much of it
as fits goes into one batch, so that a small one is one operation, however many chunks it has.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def regrouped(batches: Iterable[pa.RecordBatch], max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in order, in as few batches of at most about ``max_batch_bytes`` as follow."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        nbytes = int(batch.nbytes)
        if held and held_bytes + nbytes > max_batch_bytes:
            yield from _joined(held)
            held, held_bytes = [], 0
        if nbytes > max_batch_bytes:
            yield from cut_table(pa.Table.from_batches([batch]), max_batch_bytes)
        else:
            held.append(batch)
            held_bytes += nbytes
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch; or as they are where Arrow cannot join their type."""
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return batches


def cut_table(table: pa.Table, max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The table's rows in order, in batches of about ``max_batch_bytes`` at most."""
    for chunk in table.to_batches():
        if not chunk.num_rows:
            continue
        pieces = -(-int(chunk.nbytes) // max_batch_bytes)
        rows = max(1, -(-chunk.num_rows // max(1, pieces)))
        for start in range(0, chunk.num_rows, rows):
            piece = chunk.slice(start, rows)
            # Rows of uneven size: halve what is still too large.
            if piece.nbytes > max_batch_bytes and 1 < piece.num_rows < chunk.num_rows:
                yield from cut_table(pa.Table.from_batches([piece]), max_batch_bytes)
            else:
                yield piece
