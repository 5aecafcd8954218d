"""Arrow's full validation of batches that somebody sent, sooner done where text is plain ASCII.

Arrow looks at every string by itself to see whether it is UTF-8, which takes most of the time that
a validation has. Bytes that are all below 128 are UTF-8 wherever they are cut; so columns of such
strings are validated as binary, for their offsets, and their bytes are looked at in one go.

Each call of Arrow or numpy lets go of the interpreter and, among many threads, waits for it longer
than it has worked: there is one for a whole batch.

Law of this file: pure; what is refused, and why, is what Arrow says.
"""

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_MANY_ROWS = 2000
"""The rows from which on this is faster than Arrow's own validation."""
_HELD_BYTES = 256 << 10
"""The bytes of text that are looked at without letting go of the interpreter."""
# Types are compared by number: to hash one takes longer than to look at a column.
_BINARY = {pa.lib.Type_STRING: pa.binary(), pa.lib.Type_LARGE_STRING: pa.large_binary()}
_OFFSET = {pa.lib.Type_STRING: struct.Struct("<i"), pa.lib.Type_LARGE_STRING: struct.Struct("<q")}


def validate_fully(batches: Sequence[pa.RecordBatch]) -> None:
    """See that everything in batches of one schema is as Arrow wants it, in few calls.

    Raises:
        pa.ArrowInvalid: one of them is not good.
    """
    rows = sum(batch.num_rows for batch in batches)
    if rows >= _MANY_ROWS * len(batches) and all(map(_is_known_valid, batches)):
        return
    if len(batches) == 1:
        batches[0].validate(full=True)
    else:
        # That each column has as many rows as its batch was seen when Arrow read the message.
        pa.Table.from_batches(batches).validate(full=True)


def _is_known_valid(batch: pa.RecordBatch) -> bool:
    """Whether a batch is known to be valid; False says that nothing is known."""
    columns, texts = [], []
    try:
        for column in batch.columns:
            if (binary := _BINARY.get(column.type.id)) is not None:
                texts.append(column)
                column = _as_binary(column, binary)
            columns.append(column)
        looked_at = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        looked_at.validate(full=True)
    except (pa.ArrowInvalid, ValueError):  # the latter where columns are not of one length
        return False
    return looked_at.num_rows == batch.num_rows and all(map(_is_ascii, texts))


def _as_binary(strings: pa.Array, binary: pa.DataType) -> pa.Array:
    """An array of binary over the same buffers, of which nothing is known."""
    buffers = strings.buffers()
    if buffers[0] is not None:
        # Long enough to be counted: how many nulls there are may not have been told.
        strings.validate()
    nulls, at = strings.null_count, strings.offset
    return pa.Array.from_buffers(binary, len(strings), buffers, nulls, at)


def _is_ascii(strings: pa.Array) -> bool:
    """Whether all bytes between the first and the last offset, which are good, are ASCII."""
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
