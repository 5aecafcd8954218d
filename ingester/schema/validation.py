"""Arrow's full validation of batches that somebody sent, sooner done where text is plain ASCII.

Arrow looks at every string by itself to see whether it is UTF-8, which takes most of the time that
a validation has. Bytes that are all below 128 are UTF-8 wherever they are cut; so columns of such
strings are validated as binary, for their offsets, and their bytes are looked at in one go.

Law of this file: pure; what is refused, and why, is what Arrow says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_MANY_ROWS = 2000
"""A batch has to have so many for this to be faster."""
# Types are compared by number: to hash one takes longer than to look at a column.
_BINARY = {pa.lib.Type_STRING: pa.binary(), pa.lib.Type_LARGE_STRING: pa.large_binary()}
_OFFSET: dict[int, np.dtype[np.signedinteger]] = {
    pa.lib.Type_STRING: np.dtype(np.int32),
    pa.lib.Type_LARGE_STRING: np.dtype(np.int64),
}
_ANY_BITS_ARE_GOOD = {
    pa.lib.Type_BOOL,
    pa.lib.Type_INT8,
    pa.lib.Type_INT16,
    pa.lib.Type_INT32,
    pa.lib.Type_INT64,
    pa.lib.Type_UINT8,
    pa.lib.Type_UINT16,
    pa.lib.Type_UINT32,
    pa.lib.Type_UINT64,
    pa.lib.Type_HALF_FLOAT,
    pa.lib.Type_FLOAT,
    pa.lib.Type_DOUBLE,
    pa.lib.Type_DATE32,
    pa.lib.Type_TIMESTAMP,
    pa.lib.Type_DURATION,
}


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
    """False: nothing is known."""
    try:
        batch.validate()
        return all(_column_is_known_valid(column) for column in batch.columns)
    except pa.ArrowInvalid:
        return False


def _column_is_known_valid(column: pa.Array) -> bool:
    kind = column.type.id
    if (binary := _BINARY.get(kind)) is not None:
        column.view(binary).validate(full=True)
        return _is_ascii(column, kind)
    # Arrow also counts nulls anew, where it was told that there are some.
    if column.null_count or kind not in _ANY_BITS_ARE_GOOD:
        column.validate(full=True)
    return True


def _is_ascii(strings: pa.Array, kind: int) -> bool:
    """Whether all bytes between the first and the last offset, which are good, are ASCII."""
    count, at = len(strings), strings.offset
    _, offsets, data = strings.buffers()
    if not count or offsets is None or data is None:
        return True
    ends = np.frombuffer(offsets, _OFFSET[kind], count=at + count + 1)
    values = np.frombuffer(data, np.int8)[ends[at] : ends[at + count]]
    return not len(values) or bool(values.min() >= 0)
