"""A digest of rows that does not depend on their order, or on how tasks and batches divide them.

    value ─ 64-bit hash ─┐
    value ─ 64-bit hash ─┴▶ hash of a row: the sum over its columns, mixed ─▶ digest: the sum

A repeated batch of Spark may have its rows in another order, so the digest is a sum over rows, as
all sums here modulo 2^64. A null adds nothing, so a column without values does not matter
(``tests/spark/test_row_digest.py``). Digests are kept in manifests: the hashes never change.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_LONG_BYTES = 128
"""Longer texts are hashed one at a time, shorter ones eight bytes of all of them at a time."""
_PIECE_ROWS = 1 << 16
_KEPT_BITS = np.array([(1 << 8 * count) - 1 for count in range(8)] + [2**64 - 1], np.uint64)


class RowDigest:
    """Digests the rows of one task."""

    def __init__(self) -> None:
        self.rows = 0
        self.digest = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows in the table's types."""
        for start in range(0, rows.num_rows, _PIECE_ROWS):
            piece = rows.slice(start, _PIECE_ROWS)
            total = np.zeros(piece.num_rows, np.uint64)
            for name, column in zip(piece.schema.names, piece.columns, strict=True):
                salt = _salt(name)
                total += _or_null(_mixed(_hashes(column) ^ salt), column, np.uint64(0))
            self.digest = (self.digest + int(_mixed(total + _ODD).sum())) % 2**64
        self.rows += rows.num_rows


def _salt(name: str) -> np.uint64:
    return np.uint64(
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    )


def _mixed(values: Hashes) -> Hashes:
    """Return hashes, each bit of which depends on the whole value (splitmix64's finaliser)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _or_null(hashes: Hashes, column: pa.Array, null: np.uint64) -> Hashes:
    if not column.null_count:
        return hashes
    return np.where(column.is_null().to_numpy(zero_copy_only=False), null, hashes)


def _hashes(column: pa.Array) -> Hashes:
    """Return a hash of each value; anything where it is null."""
    kind = column.type
    types = pa.types
    if types.is_struct(kind):
        total = np.zeros(len(column), np.uint64)
        for index in range(kind.num_fields):
            child = column.field(index)
            total = _mixed(total * _ODD + _or_null(_mixed(_hashes(child)), child, _NULL))
        return total
    if types.is_map(kind):
        keys, items = _mixed(_hashes(column.keys)), _mixed(_hashes(column.items))
        of_entry = keys * _ODD + _or_null(items, column.items, _NULL)
        return _sums(column.offsets.to_numpy(), of_entry)
    if types.is_list(kind) or types.is_large_list(kind):
        values = _or_null(_mixed(_hashes(column.values)), column.values, _NULL)
        return _sums(column.offsets.to_numpy(), values)
    if types.is_fixed_size_list(kind):
        child = (
            column.flatten()
            if not column.null_count
            else column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        )
        values = _or_null(_mixed(_hashes(child)), child, _NULL)
        return _sums(np.arange(len(column) + 1) * kind.list_size, values)
    if types.is_string(kind) or types.is_binary(kind):
        return _texts(column, np.dtype("<i4"))
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _texts(column, np.dtype("<i8"))
    if types.is_boolean(kind):
        return _fixed(column.cast(pa.uint8()))
    return _fixed(column)


def _sums(offsets: npt.NDArray[Any], values: Hashes) -> Hashes:
    """Return a hash of each list, from those of the elements, which depend on their places."""
    counts = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    place = np.arange(last - first) - np.repeat(offsets[:-1] - first, counts)
    placed = _mixed(values[first:last] + place.astype(np.uint64) * _ODD)
    upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(placed, dtype=np.uint64)])
    sums = upto[offsets[1:] - first] - upto[offsets[:-1] - first]
    return _mixed(sums + counts.astype(np.uint64))


def _fixed(column: pa.Array) -> Hashes:
    count, width = len(column), column.type.bit_width // 8
    data = column.buffers()[1]
    if data is None or not count or not width:
        return np.zeros(count, np.uint64)
    start = column.offset * width
    if width in (1, 2, 4, 8):
        return np.frombuffer(data, f"<u{width}", count, start).astype(np.uint64)
    words = np.zeros((count, -(-width // 8) * 8), np.uint8)
    words[:, :width] = np.frombuffer(data, np.uint8, count * width, start).reshape(count, width)
    total = np.zeros(count, np.uint64)
    for word in words.view("<u8").T:
        total = _mixed(total * _ODD + word)
    return total


def _texts(column: pa.Array, offset: np.dtype[Any]) -> Hashes:
    _, offset_buffer, data = column.buffers()
    count = len(column)
    if offset_buffer is None or not count:
        return np.zeros(count, np.uint64)
    start = column.offset * offset.itemsize
    offsets = np.frombuffer(offset_buffer, offset, count + 1, start).astype(np.int64)
    lengths, first = np.diff(offsets), int(offsets[0])
    starts = offsets[:-1] - first
    # Eight more bytes, so that a word may begin at the last one.
    text = np.zeros(int(offsets[-1]) - first + 8, np.uint8)
    if len(text) > 8:
        text[:-8] = np.frombuffer(data, np.uint8, len(text) - 8, first)
    words = np.ndarray((len(text) - 7,), np.dtype("<u8"), text.data, strides=(1,))
    hashes = _mixed(lengths.astype(np.uint64) + _ODD)
    here = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    done = 0
    while len(here):
        left = np.minimum(lengths[here] - done, 8)
        word = words[starts[here] + done] & _KEPT_BITS[left]
        hashes[here] = _mixed(hashes[here] * _ODD + word)
        done += 8
        here = here[lengths[here] > done]
    for row in np.flatnonzero(lengths > _LONG_BYTES):
        value = text[starts[row] : starts[row] + lengths[row]]
        long = hashlib.blake2b(value.data, digest_size=8).digest()
        hashes[row] = np.frombuffer(long, "<u8")[0]
    return hashes
