"""What a caller hands to ``write``, as record batches of one schema. Pure.

A record batch is one operation and is never cut. Only a table is: its author drew no lines in it
but those of its chunks.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from .errors import InvalidRequest

# A Table, a RecordBatch, a RecordBatchReader or an iterable of RecordBatches: pyarrow is untyped.
Data: TypeAlias = Any


def batches_of(
    data: Data, max_batch_bytes: int
) -> tuple[pa.Schema | None, Iterator[pa.RecordBatch]]:
    """The schema and the non-empty batches of ``data``; no schema where there is no batch.

    A table's chunks larger than ``max_batch_bytes`` are cut into pieces of about that size.

    Raises:
        InvalidRequest: not one of the types that are taken.
    """
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data] if data.num_rows else [])
    if isinstance(data, pa.Table):
        return data.schema, cut_table(data, max_batch_bytes)
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, (batch for batch in data if batch.num_rows)
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise InvalidRequest(f"write takes a Table, a RecordBatch or batches, not a {kind}")
    batches = (_checked(batch) for batch in data)
    first = next(batches, None)
    if first is None:
        return None, iter(())
    return first.schema, _chained(first, batches)


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


def _checked(batch: object) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRequest(f"write takes record batches, not a {type(batch).__name__}")
    return batch


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if first.num_rows:
        yield first
    for batch in rest:
        if batch.num_rows:
            yield batch
