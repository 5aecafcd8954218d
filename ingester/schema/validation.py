"""Arrow's full validation of received batches, faster for plain ASCII text.

Arrow checks every string separately for valid UTF-8, which takes most of the validation's time.
Bytes below 128 are valid UTF-8 wherever they are cut, so such columns are validated as binary,
for their offsets, and their bytes are checked in one pass.

Each call into Arrow or numpy releases the GIL and waits to get it back, so there is one for a
whole batch. What is refused, and why, is what Arrow says (tests/schema). Pure.
"""

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_MANY_ROWS = 2000
"""From this many rows on, this is faster than Arrow's own validation."""
_HELD_BYTES = 256 << 10
"""Text up to this size is checked without releasing the GIL."""
# Types are compared by id, because hashing one takes longer than checking a column.
_BINARY = {pa.lib.Type_STRING: pa.binary(), pa.lib.Type_LARGE_STRING: pa.large_binary()}
_OFFSET = {pa.lib.Type_STRING: struct.Struct("<i"), pa.lib.Type_LARGE_STRING: struct.Struct("<q")}


def validate_fully(batches: Sequence[pa.RecordBatch]) -> None:
    """Validate batches of one schema in few calls.

    Raises:
        pa.ArrowInvalid: one of them is invalid.
    """
    rows = sum(batch.num_rows for batch in batches)
    if rows >= _MANY_ROWS * len(batches) and all(map(_is_known_valid, batches)):
        return
    if len(batches) == 1:
        batches[0].validate(full=True)
    else:
        # Arrow checked each column's row count when it read the message.
        pa.Table.from_batches(batches).validate(full=True)


def _is_known_valid(batch: pa.RecordBatch) -> bool:
    """Return whether a batch is known to be valid; False means unknown."""
    columns, texts = [], []
    try:
        for column in batch.columns:
            if (binary := _BINARY.get(column.type.id)) is not None:
                texts.append(column)
                column = _as_binary(column, binary)
            columns.append(column)
        looked_at = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        looked_at.validate(full=True)
    except (pa.ArrowInvalid, ValueError):  # ValueError: columns of different lengths
        return False
    return looked_at.num_rows == batch.num_rows and all(map(_is_ascii, texts))


def _as_binary(strings: pa.Array, binary: pa.DataType) -> pa.Array:
    """Return an unvalidated binary array over the same buffers."""
    buffers = strings.buffers()
    if buffers[0] is not None:
        # Counted now, because the null count may be unknown.
        strings.validate()
    nulls, at = strings.null_count, strings.offset
    return pa.Array.from_buffers(binary, len(strings), buffers, nulls, at)


def _is_ascii(strings: pa.Array) -> bool:
    """Return whether all bytes between the first and last offset (both valid) are ASCII."""
    _, offsets, data = strings.buffers()
    if not len(strings) or offsets is None or data is None:
        return True
    offset, at = _OFFSET[strings.type.id], strings.offset
    (first,) = offset.unpack_from(offsets, at * offset.size)
    (last,) = offset.unpack_from(offsets, (at + len(strings)) * offset.size)
    text = memoryview(data)[first:last]
    if len(text) <= _HELD_BYTES:
        return bytes(text).isascii()
    return bool(np.frombuffer(text, np.int8).min() >= 0)
