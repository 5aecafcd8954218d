"""Writes the log around the page cache, in whole blocks, where the file system allows it.

A log is written once and read only after a crash; in the page cache it would displace other data,
and each byte would cost a copy. Direct writes need whole blocks: the block in which an append
begins is written again with its old bytes, and the last one is filled with zeros. This works only
for an append behind everything written before, into space that is already allocated. Any other
write, and every write after an error, goes through the page cache, which sees the same bytes.

Without a sync per commit, small appends go through the page cache, which is faster than a device;
large ones do not, because filling fresh pages takes longer than writing them.

Source: open(2), O_DIRECT.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wal.disk import Disk, Mode, Piece, is_zeros

# All current block devices and file systems accept this size; some accept smaller ones.
BLOCK_BYTES = 4096
# A group's pieces are gathered here before one write.
_STAGING_BYTES = 4 << 20
# Up to this size pieces are joined in one step.
_LITTLE_BYTES = 64 << 10
# Up to this size the page cache is faster than a device.
CACHED_BYTES = 64 << 10
# Among many threads, waiting for the interpreter again takes longer than this copy at 5 GB/s.
_HELD_BYTES = 512 << 10


@dataclass(eq=False)
class _DirectFile:
    """A second descriptor of a file. From `end` on the file holds zeros; `tail` precedes `end`."""

    fd: int
    room: int = 0
    """Up to here whole blocks do not make the file longer."""
    end: int = 0
    tail: bytes = b""

    def before(self, offset: int) -> bytes | None:
        """The bytes between the start of the block and `offset`, or None if unknown."""
        if offset < self.end:
            return None
        head = offset % BLOCK_BYTES
        if offset - head >= self.end:
            return bytes(head)
        return self.tail if offset == self.end else None


class DirectDisk(Disk):
    """The real disk, with direct writes to the files that it creates. See `Disk`.

    Args:
        least_bytes: Smaller appends go through the page cache.
    """

    def __init__(self, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
        self._files: dict[int, _DirectFile] = {}
        self._lock = threading.Lock()
        self._staging: npt.NDArray[np.uint8] | None = None

    def open(self, path: Path, mode: Mode) -> int:
        """Open a file; without support for direct writes it is written through the page cache."""
        fd = super().open(path, mode)
        if mode in ("create", "reuse"):
            with contextlib.suppress(OSError):
                direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
                self._files[fd] = _DirectFile(direct)
        return fd

    def close(self, fd: int) -> None:
        self._use_page_cache(fd)
        super().close(fd)

    def zero(self, fd: int, size: int) -> None:
        super().zero(fd, size)
        self._note_room(fd)

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._note_room(fd)

    def _note_room(self, fd: int) -> None:
        if (file := self._files.get(fd)) is not None:
            file.room = self.size(fd) // BLOCK_BYTES * BLOCK_BYTES

    def truncate(self, fd: int, size: int) -> None:
        """Set the length. Later writes go through the page cache because the end has changed."""
        self._use_page_cache(fd)
        super().truncate(fd, size)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        file = self._files.get(fd)
        before = file.before(offset) if file is not None else None
        if file is None or before is None or offset + sum(map(len, pieces)) > file.room:
            self._use_page_cache(fd)
            return super().pwritev(fd, pieces, offset)
        try:
            if not before and is_zeros(pieces, BLOCK_BYTES):
                return os.pwritev(file.fd, pieces, offset)
            with self._lock:
                return self._append(fd, file, before, pieces, offset)
        except OSError as exc:
            self._use_page_cache(fd)
            if exc.errno != errno.EINVAL:
                raise
            # The file system accepts the flag but not the write.
            return super().pwritev(fd, pieces, offset)

    def _append(
        self, fd: int, file: _DirectFile, before: bytes, pieces: Sequence[Piece], offset: int
    ) -> int:
        if self._staging is None:
            # Mapped, so that it is aligned; kept, because fresh pages are expensive.
            self._staging = np.frombuffer(mmap.mmap(-1, _STAGING_BYTES), np.uint8)
        staging = self._staging
        filled = self._fill(staging, (before, *pieces))
        blocks = -(-filled // BLOCK_BYTES) * BLOCK_BYTES
        staging[filled:blocks] = 0
        way = file.fd if filled >= self._least_bytes else fd
        written = os.pwritev(way, [staging[:blocks].data], offset - len(before))
        done = min(written, filled) - len(before)
        if done <= 0:
            raise OSError(errno.EINVAL, "nothing was written")
        file.end = offset + done
        last = (len(before) + done) // BLOCK_BYTES * BLOCK_BYTES
        file.tail = staging[last : len(before) + done].tobytes()
        return done

    def _fill(self, staging: npt.NDArray[np.uint8], pieces: Sequence[Piece]) -> int:
        """Copy what fits and return the number of bytes copied."""
        if sum(map(len, pieces)) <= _LITTLE_BYTES:
            pieces = (b"".join(pieces),)
        filled = 0
        for piece in pieces:
            size = min(len(piece), len(staging) - filled)
            if size <= _HELD_BYTES:
                staging.data[filled : filled + size] = piece[:size]
            else:
                # numpy releases the interpreter during the copy.
                staging[filled : filled + size] = np.frombuffer(piece, np.uint8, size)
            filled += size
        return filled

    def _use_page_cache(self, fd: int) -> None:
        """Write the file through the page cache from now on."""
        file = self._files.pop(fd, None)
        if file is not None:
            os.close(file.fd)
