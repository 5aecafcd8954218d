"""Columns as integers that sort as their values do, and the stable order of these integers.

Strings are not compared row by row: each column is dictionary-encoded once, only the dictionary is
sorted, and the rest is a sort of integers. If the combined codes and the last column fit into 63
bits, that is one integer per row. Codes are as narrow as possible, and each is released as soon as
it is part of that integer, so a sort takes less memory than the rows that it orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.int64]

LONG_RUN = 16
"""The average length of ordered runs from which merging pays."""

PIECE_ROWS = 1 << 16
_BITS = 62
_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Key:
    """One column as integers that compare as its values do; ``span`` is above the largest."""

    name: str
    codes: npt.NDArray[np.integer]
    span: int
    cardinality: int


def key_of(name: str, column: pa.ChunkedArray) -> tuple[pa.Array | None, Key]:
    """Integers that sort as the column does, and its dictionary form if it has one."""
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        numbers = _plain_numbers(column)
        if numbers is not None:
            return None, _shifted(name, numbers)
    # Chunk by chunk with one dictionary for all, so texts are never joined.
    encoded = _joined(column.dictionary_encode())
    ranks = _ranks(encoded.dictionary)
    count = len(encoded.dictionary)
    indices = encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)
    codes = np.append(ranks, count).astype(np.min_scalar_type(count))[indices]
    key = Key(name, codes, count + 1, count)
    return (encoded if pa.types.is_string(column.type) else None), key


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """One array, without a copy if there is only one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        # pyarrow makes no dictionary array without values.
        empty = pa.nulls(0, getattr(column.type, "value_type", column.type))
        return empty.dictionary_encode() if pa.types.is_dictionary(column.type) else empty
    return column.combine_chunks()


def _plain_numbers(column: pa.ChunkedArray) -> Codes | None:
    """The numbers minus the lowest, nulls one above the highest; None if the range is too large."""
    if pa.types.is_uint64(column.type):
        return None
    shifted = np.zeros(len(column), dtype=np.int64)
    if column.null_count == len(column):
        return shifted
    low, high = (_number(value) for value in pc.min_max(column).values())
    if high - low >= 1 << _BITS or high == _LARGEST:
        return None
    end = 0
    # Chunk by chunk, so that no other copy is held.
    for chunk in column.chunks:
        start, end = end, end + len(chunk)
        whole = chunk.view(pa.int64()) if pa.types.is_timestamp(chunk.type) else chunk
        if whole.null_count:
            whole = pc.fill_null(whole.cast(pa.int64()), high + 1)
        np.subtract(
            whole.to_numpy(zero_copy_only=False), low, out=shifted[start:end], dtype=np.int64
        )
    return shifted


def _number(value: pa.Scalar) -> int:
    """The stored integer of a number or a time."""
    return int(value.value if isinstance(value, pa.TimestampScalar) else value.as_py())


def _shifted(name: str, numbers: Codes) -> Key:
    span = int(numbers.max()) + 1 if len(numbers) else 1
    return Key(name, numbers, span, min(span, len(numbers)))


def _ranks(dictionary: pa.Array) -> npt.NDArray[np.int64]:
    order = pc.sort_indices(dictionary).to_numpy(zero_copy_only=False)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def argsort(keys: list[Key]) -> Codes:
    """Stable order by the first key, then the second, …; keys are packed while they fit 62 bits.

    Removes the keys from the list, so that their memory is free once they are packed.
    """
    packed: list[tuple[Codes, int]] = []
    while keys:
        key = keys.pop(0)
        if packed and packed[-1][1] * key.span < 1 << _BITS:
            codes, span = packed.pop()
            codes *= key.span
            codes += key.codes
            packed.append((codes, span * key.span))
        else:
            packed.append((key.codes.astype(np.int64), key.span))
        del key
    if len(packed) > 1:
        return np.lexsort([codes for codes, _ in reversed(packed)]).astype(np.int64)
    [(codes, span)] = packed
    if bool((codes[1:] >= codes[:-1]).all()):
        return np.arange(len(codes), dtype=np.int64)
    return _stable(codes, span)


def _stable(codes: Codes, span: int) -> Codes:
    """The stable order of the codes; it reuses their memory."""
    rows = len(codes)
    if _falls(codes) < rows // LONG_RUN:
        # Merging long runs takes a seventh of sorting, as for a table's rows and a few changes.
        return np.argsort(codes, kind="stable")
    if span * rows < 1 << _BITS:
        # With the row number as last digit every code is unique, so the fast sort is stable.
        return _in_order(codes, np.arange(rows, dtype=np.int64))
    # numpy's stable sort is four times slower than its fast one: sort fast, then put equal codes
    # back into order by run number and row number.
    order = np.argsort(codes)
    rises = _rises(codes, order)
    if bool(rises.all()):
        return order
    codes[:1] = 0
    np.cumsum(rises, out=codes[1:])
    return _in_order(codes, order)


def _rises(codes: Codes, order: Codes) -> npt.NDArray[np.bool_]:
    """A mask of the codes, except the first, that are above the previous one in this order."""
    rises = np.empty(len(order) - 1, dtype=bool)
    # Piece by piece, so that no other copy of the codes is held.
    for start in range(0, len(rises), PIECE_ROWS):
        piece = codes[order[start : start + PIECE_ROWS + 1]]
        np.greater(piece[1:], piece[:-1], out=rises[start : start + PIECE_ROWS])
    return rises


def _falls(codes: Codes) -> int:
    """The number of codes followed by a lower one."""
    return int(np.count_nonzero(codes[1:] < codes[:-1]))


def _in_order(codes: Codes, numbers: Codes) -> Codes:
    """The row numbers by code, then by number; in the memory of the codes."""
    codes *= len(codes)
    codes += numbers
    codes.sort()
    codes %= len(codes)
    return codes


def last_of_each_key(order: npt.NDArray[np.int64], keys: list[Key]) -> npt.NDArray[np.int64]:
    """The last of neighbours with equal keys: the one written last, because the sort is stable."""
    if len(order) < 2:
        return order
    differs = np.zeros(len(order) - 1, dtype=bool)
    for key in keys:
        ordered = key.codes[order]
        differs |= ordered[1:] != ordered[:-1]
    last: npt.NDArray[np.int64] = order[np.append(differs, True)]
    return last
