"""A file's current bytes, and what a power cut may leave of them.

    write, resize ──▶ now, pending ──sync──▶ kept

Only a sync moves bytes from ``now`` to ``kept``. A power cut leaves ``kept`` and, of each
pending write, any subset of its sectors.
"""

from __future__ import annotations

import random

SECTOR = 512


class UnsyncedBytes:
    """The bytes of one file."""

    def __init__(self, data: bytes = b"") -> None:
        self.now = bytearray(data)
        self._kept = bytearray(data)
        self._pending: list[tuple[int, bytes] | int] = []

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at an offset."""
        _put(self.now, offset, data)
        self._pending.append((offset, data))

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""
        _resize(self.now, size)
        self._pending.append(size)

    def sync(self) -> None:
        """Make all bytes so far survive a power cut."""
        self._kept = bytearray(self.now)
        self._pending.clear()

    def after_cut(self, dice: random.Random) -> bytes:
        """Return the bytes that are found after a power cut."""
        data = bytearray(self._kept)
        for each in self._pending:
            if isinstance(each, int):
                if dice.random() < 0.5:
                    _resize(data, each)
            else:
                _put_some(data, *each, dice)
        return bytes(data)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset + len(piece):
        _resize(data, offset + len(piece))
    data[offset : offset + len(piece)] = piece


def _put_some(data: bytearray, offset: int, piece: bytes, dice: random.Random) -> None:
    """Write all, none or some of the sectors of a write."""
    fate = dice.random()
    if fate < 0.3:
        return
    first = offset // SECTOR * SECTOR
    for start in range(first, offset + len(piece), SECTOR):
        if fate > 0.6 or dice.random() < 0.5:
            begin, end = max(start, offset), min(start + SECTOR, offset + len(piece))
            _put(data, begin, piece[begin - offset : end - offset])
