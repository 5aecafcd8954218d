"""Dividing a batch into pieces that are small enough, each with memory of its own.

A slice of an Arrow array keeps, and counts, the memory of the entire array. So the columns of a
piece are copied; a dictionary is shared by all pieces. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ingester.schema.expansion import expands, fixed_bytes, plain, plain_bytes


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fully valid batch in order, in batches of at most about ``most_bytes``.

    Sizes are those in plain form. A single row is not divided, whatever its size.
    """
    if _fits(batch, most_bytes):
        yield pa.RecordBatch.from_arrays(list(map(_copied, batch.columns)), schema=batch.schema)
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), most_bytes)
    yield from pieces(batch.slice(half), most_bytes)


def _fits(batch: pa.RecordBatch, most_bytes: int) -> bool:
    return batch.num_rows < 2 or sum(map(_bytes, batch.columns)) <= most_bytes


def _bytes(column: Any) -> float:
    if expands(column.type):
        return plain_bytes(column, column.type)
    return float(max(column.nbytes, len(column) * fixed_bytes(column.type)))


def _copied(column: Any) -> Any:
    """Return the column in memory of its own; as it is where Arrow cannot copy its type."""
    kind, t = column.type, pa.types
    if t.is_dictionary(kind):
        codes = _copied(column.indices)
        return pa.DictionaryArray.from_arrays(codes, column.dictionary, ordered=kind.ordered)
    if t.is_string_view(kind) or t.is_binary_view(kind):
        return plain(column).cast(kind)
    # Writing as IPC leaves out what other slices refer to.
    batch = pa.RecordBatch.from_arrays([column], ["column"])
    try:
        return pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0)
    except pa.ArrowException:
        return column  # dictionaries inside of other types
