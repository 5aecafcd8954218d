"""Law: a file is read through a window of bounded size; an unreadable byte is damage, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wal.disk import Disk
from wal.errors import LogDamaged
from wal.scan import READ_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class FileShrank(LogDamaged):
    """The file was cut while it was read."""


class FileSource:
    """A segment's file as a `wal.scan.Source`. Use as a context manager; it opens on entry."""

    def __init__(self, disk: Disk, path: Path, window_bytes: int = READ_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._window = bytearray(max(window_bytes, READ_BYTES))
        self._view = memoryview(self._window)
        self._start = 0
        self._end = 0
        self._size = 0
        self._fd = -1

    def __enter__(self) -> FileSource:
        self._fd = self._disk.open(self._path, "read")
        self._size = self._disk.size(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._fd)

    @property
    def size(self) -> int:
        """The file's length when it was opened."""
        return self._size

    def read(self, offset: int, length: int) -> memoryview:
        """A view of up to `length` bytes at `offset`, good until the next read.

        Raises:
            FileShrank: the file ends before it did when it was opened.
            LogDamaged: a byte cannot be read.
        """
        end = min(offset + length, self._size)
        if end <= offset:
            return self._view[:0]
        if offset < self._start or end > self._end:
            self._start = offset
            wanted = min(len(self._window), self._size - offset)
            filled = self._fill(self._view[:wanted], offset)
            self._end = offset + filled
            if filled < wanted:
                raise FileShrank(self._path, self._end, f"{self._size} bytes", f"{self._end}")
        return self._view[offset - self._start : min(end, self._end) - self._start]

    def read_into(self, buffer: WriteableBuffer, offset: int) -> None:
        """Fill `buffer` from `offset` on; LogDamaged when the file ends before it is full."""
        target = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else None
        if target is None:
            return
        if len(target) <= len(self._window) // 8:
            piece = self.read(offset, len(target))
            target[: len(piece)] = piece
            done = len(piece)
        else:
            done = self._fill(target, offset)
        if done < len(target):
            raise LogDamaged(self._path, offset, f"{len(target)} bytes", f"{done}")

    def _fill(self, target: memoryview, offset: int) -> int:
        done = 0
        while done < len(target):
            try:
                count = self._disk.pread_into(self._fd, target[done:], offset + done)
            except OSError as exc:
                raise LogDamaged(
                    self._path, offset + done, "readable bytes", exc.strerror or str(exc)
                ) from exc
            if count == 0:
                break
            done += count
        return done
