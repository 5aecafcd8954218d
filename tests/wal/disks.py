"""Disks that fail where a test tells them to, and nowhere else.

`FaultyDisk` is the real disk with injected faults. `CrashDisk` is in memory and can lose power:
each unsynced sector and file name is then kept or lost, in any combination.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.unsynced import UnsyncedBytes
from wal.direct_io import DirectDisk
from wal.disk import Disk, Mode, Piece


def require_zeroing(folder: Path) -> None:
    """Skip the test if the folder's file system cannot zero a file in place."""
    disk = Disk()
    fd = disk.open(folder / "zeroed", "create")
    try:
        disk.zero(fd, 4096)
    except OSError as exc:
        pytest.skip(f"this file system does not zero: {exc}")
    finally:
        disk.close(fd)
        disk.unlink(folder / "zeroed")


class FaultyDisk(DirectDisk):
    """Counts calls by name; a test can make any of them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []
        self._faults: dict[str, Callable[[Any], None]] = {}
        self._short: int | None = None
        self._lock = threading.Lock()

    def fail(
        self,
        call: str,
        error: int = errno.EIO,
        *,
        skip: int = 0,
        times: int = 10**9,
        only: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Let `call` fail with `error`, after `skip` successful calls, `times` times."""
        left = [skip, times]

        def fault(subject: Any) -> None:
            if not only(subject):
                return
            if left[0] > 0:
                left[0] -= 1
            elif left[1] > 0:
                left[1] -= 1
                raise OSError(error, os.strerror(error))

        self._faults[call] = fault

    def before(self, call: str, action: Callable[[Any], None]) -> None:
        """Run `action` in the calling thread before each `call`."""
        self._faults[call] = action

    def heal(self, *calls: str) -> None:
        """Remove the faults in `calls`, or all of them."""
        for call in calls or tuple(self._faults):
            self._faults.pop(call, None)

    def write_short_once(self, count: int) -> None:
        """Let the next write take only `count` bytes."""
        self._short = count

    def names(self) -> list[str]:
        return [call for call, _ in self.calls]

    def _enter(self, call: str, subject: Any) -> None:
        with self._lock:
            self.calls.append((call, subject))
        if (fault := self._faults.get(call)) is not None:
            fault(subject)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        self._enter("pwritev", offset)
        if self._short is not None:
            count, self._short = self._short, None
            return super().pwritev(fd, [b"".join(pieces)[:count]], offset)
        return super().pwritev(fd, pieces, offset)

    def open(self, path: Path, mode: Mode) -> int:
        if mode == "reuse":
            self._enter("open to reuse", path)
        return super().open(path, mode)

    def allocate(self, fd: int, size: int) -> None:
        self._enter("allocate", size)
        super().allocate(fd, size)

    def zero(self, fd: int, size: int) -> None:
        self._enter("zero", size)
        super().zero(fd, size)

    def truncate(self, fd: int, size: int) -> None:
        self._enter("truncate", size)
        super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync", fd)
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._enter("fsync", fd)
        super().fsync(fd)

    def fsync_directory(self, directory: Path) -> None:
        self._enter("fsync_directory", directory)
        super().fsync_directory(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        super().unlink(path)


class PowerLost(BaseException):
    """The machine loses power in the middle of a call."""


class CrashDisk(Disk):
    """A disk in memory that loses power at the n-th call that changes something."""

    def __init__(self) -> None:
        self._names: dict[Path, UnsyncedBytes] = {}
        self._durable_names: dict[Path, UnsyncedBytes] = {}
        self._unsynced_names: list[tuple[Path, UnsyncedBytes | None]] = []
        self._open: dict[int, UnsyncedBytes] = {}
        self._next_fd = 100
        self._lock = threading.Lock()
        self.calls_left: int | None = None
        self.lost = False

    def after_crash(self, seed: int) -> CrashDisk:
        """The disk that the machine finds after the power loss."""
        rng = random.Random(seed)
        names = dict(self._durable_names)
        for path, file in self._unsynced_names:
            if rng.random() < 0.5:
                if file is None:
                    names.pop(path, None)
                else:
                    names[path] = file
        survivors: dict[UnsyncedBytes, UnsyncedBytes] = {}
        disk = type(self)()
        for path, file in sorted(names.items()):
            if file not in survivors:
                survivors[file] = UnsyncedBytes(file.after_cut(rng))
            disk._names[path] = survivors[file]
        disk._durable_names = dict(disk._names)
        return disk

    def spend(self) -> None:
        """Count down the calls until power is lost, also for other parts of the same machine."""
        with self._lock:
            self._change()

    def contents(self) -> dict[str, bytes]:
        return {path.name: bytes(file.now) for path, file in self._names.items()}

    def _change(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.lost = True
        if self.lost:
            raise PowerLost

    def _name(self, path: Path, file: UnsyncedBytes | None) -> None:
        if file is None:
            del self._names[path]
        else:
            self._names[path] = file
        self._unsynced_names.append((path, file))

    def make_directory(self, directory: Path) -> None:
        pass

    def list_directory(self, directory: Path) -> list[str]:
        return [path.name for path in self._names]

    def open(self, path: Path, mode: Mode) -> int:
        with self._lock:
            if mode == "create":
                self._change()
                self._name(path, UnsyncedBytes())
            elif path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._next_fd += 1
            self._open[self._next_fd] = self._names[path]
            return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        return len(self._open[fd].now)

    def pread_into(self, fd: int, buffer: Any, offset: int) -> int:
        piece = self._open[fd].now[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        with self._lock:
            data = b"".join(pieces)
            if self.calls_left == 0:
                # Power is lost in the middle of a write: part of it was written.
                self._open[fd].write(offset, data[: len(data) // 2])
            self._change()
            self._open[fd].write(offset, data)
            return len(data)

    def allocate(self, fd: int, size: int) -> None:
        with self._lock:
            self._change()
            if size > len(self._open[fd].now):
                self._open[fd].resize(size)

    def has_other_names(self, fd: int) -> bool:
        with self._lock:
            return sum(file is self._open[fd] for file in self._names.values()) > 1

    def zero(self, fd: int, size: int) -> None:
        with self._lock:
            self._change()
            self._open[fd].resize(size)
            self._open[fd].write(0, bytes(size))

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._change()
            self._open[fd].resize(size)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self._change()
            self._open[fd].sync()

    fsync = fdatasync

    def fsync_directory(self, directory: Path) -> None:
        with self._lock:
            self._change()
            self._durable_names = dict(self._names)
            self._unsynced_names.clear()

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._change()
            file = self._names[source]
            self._name(target, file)
            self._name(source, None)

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            self._change()
            if target in self._names:
                raise FileExistsError(errno.EEXIST, "exists", str(target))
            self._name(target, self._names[source])

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._change()
            self._name(path, None)
