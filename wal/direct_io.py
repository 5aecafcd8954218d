"""Law: what the log writes goes around the page cache, in whole blocks, where that is possible.

A log is written once and read after a crash: in the page cache it only displaces what others read,
and each of its bytes costs a copy into a fresh page. Whole blocks are needed for that, so the
block in which an append begins is written again with the bytes that it holds, and the one in
which it ends is filled up with the zeros that are there. Only an append behind all that was
written before can know those, and only in room that is there already, as whole blocks would make
the file longer. Anything else, and everything after an error, takes the ordinary way, which sees
the same bytes.

Where nobody waits for a sync, little goes into the page cache, in the same blocks: that is sooner
done than a write to the device. Much is not: to fill fresh pages takes longer than to write them.

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

# What every block device and file system of today takes; a smaller one would do on some.
BLOCK_BYTES = 4096
# One write of a group is copied here first: its pieces lie anywhere in memory.
_STAGING_BYTES = 4 << 20
# So little is put together in one step.
_LITTLE_BYTES = 64 << 10
# Of that the page cache is through sooner than a device.
CACHED_BYTES = 64 << 10
# In a crowd it takes longer to wait for the interpreter again than to copy this, at 5 GB/s.
_HELD_BYTES = 512 << 10


@dataclass(eq=False)
class _DirectFile:
    """A second descriptor of a file. From `end` on the file holds zeros; `tail` comes before."""

    fd: int
    room: int = 0
    """The end of the room in which whole blocks do not make the file longer."""
    end: int = 0
    tail: bytes = b""

    def before(self, offset: int) -> bytes | None:
        """The bytes of the block in front of `offset`; None where they are not known."""
        if offset < self.end:
            return None
        head = offset % BLOCK_BYTES
        if offset - head >= self.end:
            return bytes(head)
        return self.tail if offset == self.end else None


class DirectDisk(Disk):
    """The real disk, with direct writes to the files that it creates. See `Disk`.

    Args:
        least_bytes: Appends of less go into the page cache.
    """

    def __init__(self, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
        self._files: dict[int, _DirectFile] = {}
        self._lock = threading.Lock()
        self._staging: npt.NDArray[np.uint8] | None = None

    def open(self, path: Path, mode: Mode) -> int:
        """A file system without direct writes is written in the ordinary way."""
        fd = super().open(path, mode)
        if mode in ("create", "reuse"):
            with contextlib.suppress(OSError):
                direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
                self._files[fd] = _DirectFile(direct)
        return fd

    def close(self, fd: int) -> None:
        self._leave(fd)
        super().close(fd)

    def zero(self, fd: int, size: int) -> None:
        super().zero(fd, size)
        self._give_room(fd)

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._give_room(fd)

    def _give_room(self, fd: int) -> None:
        if (file := self._files.get(fd)) is not None:
            file.room = self.size(fd) // BLOCK_BYTES * BLOCK_BYTES

    def truncate(self, fd: int, size: int) -> None:
        """The file takes the ordinary way from now on: its end is not what it was."""
        self._leave(fd)
        super().truncate(fd, size)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        file = self._files.get(fd)
        before = file.before(offset) if file is not None else None
        if file is None or before is None or offset + sum(map(len, pieces)) > file.room:
            self._leave(fd)
            return super().pwritev(fd, pieces, offset)
        try:
            if not before and is_zeros(pieces, BLOCK_BYTES):
                return os.pwritev(file.fd, pieces, offset)
            with self._lock:
                return self._append(fd, file, before, pieces, offset)
        except OSError as exc:
            self._leave(fd)
            if exc.errno != errno.EINVAL:
                raise
            # The file system took the flag and does not take the write.
            return super().pwritev(fd, pieces, offset)

    def _append(
        self, fd: int, file: _DirectFile, before: bytes, pieces: Sequence[Piece], offset: int
    ) -> int:
        if self._staging is None:
            # Mapped, because that is aligned; kept, because fresh pages are dear.
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
                # By numpy, which lets other threads run meanwhile.
                staging[filled : filled + size] = np.frombuffer(piece, np.uint8, size)
            filled += size
        return filled

    def _leave(self, fd: int) -> None:
        """Let the file take the ordinary way from now on."""
        file = self._files.pop(fd, None)
        if file is not None:
            os.close(file.fd)
