"""A disk that keeps nothing, for a log whose entries are all shipped to the store.

The log itself is the same: it orders entries, forms groups and counts segments, and the store has
what it acknowledges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wal.disk import Disk, Mode, Piece

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class NoDisk(Disk):
    """Accepts every call and writes nothing. Descriptors are numbers of its own."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def make_directory(self, directory: Path) -> None:
        """Do nothing."""

    def list_directory(self, directory: Path) -> list[str]:
        """Return no name."""
        return []

    def open(self, path: Path, mode: Mode) -> int:
        fd = next(self._numbers)
        self._sizes[fd] = 0
        return fd

    def close(self, fd: int) -> None:
        self._sizes.pop(fd, None)

    def size(self, fd: int) -> int:
        return self._sizes[fd]

    def pread_into(self, fd: int, buffer: WriteableBuffer, offset: int) -> int:
        return 0

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        written = sum(map(len, pieces))
        self._sizes[fd] = max(self._sizes[fd], offset + written)
        return written

    def allocate(self, fd: int, size: int) -> None:
        self._sizes[fd] = max(self._sizes[fd], size)

    def has_other_names(self, fd: int) -> bool:
        return False

    def zero(self, fd: int, size: int) -> None:
        self._sizes[fd] = size

    def truncate(self, fd: int, size: int) -> None:
        self._sizes[fd] = size

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""

    def fsync_directory(self, directory: Path) -> None:
        """Do nothing."""

    def rename(self, source: Path, target: Path) -> None:
        """Do nothing."""

    def link(self, source: Path, target: Path) -> None:
        """Do nothing."""

    def unlink(self, path: Path) -> None:
        """Do nothing."""
