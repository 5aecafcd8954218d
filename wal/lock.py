"""A data directory belongs to one process; the kernel releases the lock when the process dies.

The lock is a ``flock`` on ``LOCK``; the pid in it is only information. The holder may remove the
file: another process that has it open sees that it has no name, and takes the new one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wal.disk import FILE_MODE, Disk
from wal.errors import DirectoryLocked

LOCK_NAME = "LOCK"
TRIES = 3
"""How often to reopen a lock file that was removed before it was locked."""


class DirectoryLock:
    """Holds ``<data_dir>/LOCK`` from entry to exit; creates the folder if missing."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_NAME
        self._fd: int | None = None

    def __enter__(self) -> DirectoryLock:
        """Take the lock; DirectoryLocked, with the holder's pid, if another process has it."""
        self._fd = self._take()
        # Bounded, because on some file systems files have no links.
        for _ in range(TRIES):
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)
            self._fd = self._take()
        return self

    def _take(self) -> int:
        Disk().make_directory(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as exc:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise DirectoryLocked(self._path, int(pid) if pid.isdigit() else None) from exc
        except BaseException:
            os.close(fd)
            raise
        return fd

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
