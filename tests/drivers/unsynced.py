"""A file's bytes as they are, and what a power cut may leave of them.

    write, resize ──▶ now, pending ──sync──▶ kept

Law of this file: only a sync moves anything from ``now`` to ``kept``. A cut leaves ``kept`` and,
of each pending write, all, none or some of its sectors, in any combination.
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
        """Put bytes at a place."""
        _put(self.now, offset, data)
        self._pending.append((offset, data))

    def resize(self, size: int) -> None:
        """Cut, or grow with zeros."""
        _resize(self.now, size)
        self._pending.append(size)

    def sync(self) -> None:
        """Everything so far survives a cut."""
        self._kept = bytearray(self.now)
        self._pending.clear()

    def after_cut(self, dice: random.Random) -> bytes:
        """What is found when the power is back."""
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
    """All, none or some of the sectors that a write has touched."""
    fate = dice.random()
    if fate < 0.3:
        return
    first = offset // SECTOR * SECTOR
    for start in range(first, offset + len(piece), SECTOR):
        if fate > 0.6 or dice.random() < 0.5:
            begin, end = max(start, offset), min(start + SECTOR, offset + len(piece))
            _put(data, begin, piece[begin - offset : end - offset])
