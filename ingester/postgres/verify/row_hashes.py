"""Hashes of rows, and their sums by ranges of hashed keys.

    Texts of each column ──▶ hash_texts ──▶ combine ─┬▶ hashes of keys: the top bits are the range
                                                     └▶ hashes of rows, added up by range

numpy passes over columns; only texts of more than ``LONG`` bytes are hashed one by one, by
:mod:`mmh3`. Null has its own hash, and a row's hash depends on the column of a text. Sums do not
depend on the order of rows.

Two different sets of rows have the same count and sum of a range with probability 2**-64: a check
against faults, not against an attacker who looks for a collision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
LONG = 128
RANGES = 1 << 16
_WORD = 8
_SEED = np.uint64(0x51_7C_C1_B7_27_22_0A_95)
_NULL = np.uint64(0xA5_A3_5D_2C_0F_9B_71_43)
_MULTIPLY = np.uint64(0x9E_37_79_B9_7F_4A_7C_15)
_FINISH = (np.uint64(0xFF_51_AF_D7_ED_55_8C_CD), np.uint64(0xC4_CE_B9_FE_1A_85_EC_53))
_HALF, _MOST = np.uint64(32), np.uint64(29)
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)
"""Masks for a text's last word, by its number of bytes."""


class Texts(NamedTuple):
    """The texts of a column: bytes anywhere in ``data``, in the order of rows."""

    data: npt.NDArray[np.uint8]
    """At least eight bytes follow each text's begin and end."""
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    nulls: npt.NDArray[np.bool_] | None
    """Rows without a text; None if all have one."""

    def text(self, row: int, most: int | None = None) -> bytes | None:
        """The text of a row, or its first bytes."""
        if self.nulls is not None and self.nulls[row]:
            return None
        start, length = int(self.starts[row]), int(self.lengths[row])
        return self.data[start : start + (length if most is None else min(length, most))].tobytes()


def nothing(rows: int) -> Texts:
    """A column without texts."""
    zeros = np.zeros(rows, np.int64)
    return Texts(np.zeros(_WORD, np.uint8), zeros, zeros, np.ones(rows, np.bool_))


def hash_texts(texts: Texts) -> U64:
    """A 64-bit hash of each text; every bit depends on all of its bytes."""
    data, lengths = texts.data, texts.lengths
    hashes = lengths.astype(np.uint64) * _MULTIPLY ^ _SEED
    # A word at each byte; numpy reads unaligned ones.
    words: U64 = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
    _mix(hashes, words[texts.starts] & _MASKS[np.minimum(lengths, _WORD)])
    done = _WORD
    rows = np.flatnonzero(lengths > done)
    while rows.size and done < LONG:
        some = hashes[rows]
        left = np.minimum(lengths[rows] - done, _WORD)
        _mix(some, words[texts.starts[rows] + done] & _MASKS[left])
        hashes[rows] = some
        done += _WORD
        rows = rows[lengths[rows] > done]
    for row in rows.tolist():
        start = int(texts.starts[row]) + done
        rest = data[start : int(texts.starts[row] + lengths[row])].tobytes()
        hashes[row] ^= np.uint64(mmh3.hash64(rest, signed=False)[0])
    finished = _finish(hashes)
    if texts.nulls is not None:
        finished[texts.nulls] = _NULL
    return finished


def combine(columns: Sequence[U64]) -> U64:
    """The hash of each row from those of its columns, at least one, in order."""
    rows = np.full_like(columns[0], _SEED)
    for column in columns:
        _mix(rows, column)
    return _finish(rows)


class RangeSums:
    """Row counts and sums of hashes, by range of hashed keys."""

    def __init__(self, ranges: int = RANGES) -> None:
        """Take the number of ranges, a power of two."""
        self._shift = np.uint64(64 - (ranges.bit_length() - 1))
        self.counts = np.zeros(ranges, np.int64)
        self.sums = np.zeros(ranges, np.uint64)

    def ranges_of(self, keys: U64) -> npt.NDArray[np.int64]:
        return (keys >> self._shift).astype(np.int64)

    def add(self, keys: U64, rows: U64) -> None:
        """Add rows by the hashes of their keys and of the whole rows."""
        ranges = self.ranges_of(keys)
        np.add.at(self.counts, ranges, 1)
        np.add.at(self.sums, ranges, rows)

    def differing(self, other: RangeSums) -> npt.NDArray[np.int64]:
        """The sorted ranges that differ."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))

    @property
    def rows(self) -> int:
        return int(self.counts.sum())


def _mix(hashes: U64, words: U64) -> None:
    """Mix a word into each hash, in place."""
    hashes ^= words
    hashes *= _MULTIPLY
    hashes ^= hashes >> _MOST


def _finish(hashes: U64) -> U64:
    """Make each bit depend on all others: the finalizer of MurmurHash3."""
    hashes ^= hashes >> _HALF
    hashes *= _FINISH[0]
    hashes ^= hashes >> _MOST
    hashes *= _FINISH[1]
    hashes ^= hashes >> _HALF
    return hashes
