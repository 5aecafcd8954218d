"""The only access of the log to the disk: a `Disk`, which tests subclass to fail, fill up or crash.

Calls block; the log makes them in threads. Errors are ``OSError`` with their errno.

A data directory belongs to one process, which holds a :class:`DirectoryLock`: a ``flock`` on
``LOCK`` that the kernel releases when the process dies. The pid in the file is only information.
The holder may remove the file: another process that has it open sees that it has no name, and takes
the new one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wal.errors import DirectoryLocked, LogFailed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
Piece = bytes | memoryview
Mode = Literal["read", "write", "create", "reuse"]
IOV_MAX = os.sysconf("SC_IOV_MAX")
# Pieces below this are joined before they are written: a copy is cheaper than a vector.
_SMALL_BYTES = 16 * 1024
# Mapped, so that it is page-aligned for direct writes.
_ZEROS = memoryview(mmap.mmap(-1, 1 << 20)).toreadonly()
# linux/falloc.h
_FALLOC_FL_ZERO_RANGE = 0x10
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
if _fallocate is not None:
    # Offsets as wide as `long`: on 32-bit systems the C library's plain name takes 32-bit offsets.
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


FILE_MODE, FOLDER_MODE = 0o640, 0o750
"""The most permissive mode of a file or folder under any umask: read by owner and group only."""


class Disk:
    """The system calls that the log needs, made on the real disk."""

    def make_directory(self, directory: Path) -> None:
        """Create `directory` and its parents if missing, durably.

        An existing name is synced too, because a crash may have followed its creation.
        """
        made = not directory.is_dir()
        if made:
            self.make_directory(directory.parent)
            directory.mkdir(FOLDER_MODE, exist_ok=True)
        try:
            self.fsync_directory(directory.parent)
        except PermissionError:
            # The parent may be closed to us; then we created nothing in it.
            if made:
                raise

    def list_directory(self, directory: Path) -> list[str]:
        """The names in `directory`, in no order."""
        return os.listdir(directory)

    def open(self, path: Path, mode: Mode) -> int:
        """A descriptor of the file at `path`.

        Mode "create" creates or empties the file; "reuse" opens a file that is zeroed before
        anything else.
        """
        flags = {
            "read": os.O_RDONLY,
            "write": os.O_RDWR,
            "reuse": os.O_RDWR,
            "create": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
        }[mode]
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def close(self, fd: int) -> None:
        """Close a descriptor without a sync."""
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread_into(self, fd: int, buffer: WriteableBuffer, offset: int) -> int:
        """Read at `offset` into `buffer`; return the number of bytes read, 0 at the end."""
        return os.preadv(fd, [buffer], offset)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        """Write up to ``IOV_MAX`` pieces at `offset`; return the number of bytes written."""
        return os.pwritev(fd, pieces, offset)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve space so that the file is at least `size` bytes; new bytes read as zeros.

        A file system without reservation (EOPNOTSUPP) grows the file instead.
        """
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            if self.size(fd) < size:
                os.ftruncate(fd, size)

    def has_other_names(self, fd: int) -> bool:
        """Whether the file has more than one name, as after a backup by hard links."""
        return os.fstat(fd).st_nlink > 1

    def zero(self, fd: int, size: int) -> None:
        """Make the file `size` zeros in its allocated space, without writing them.

        The blocks stay allocated, marked as unwritten.

        Raises:
            OSError: often EOPNOTSUPP; the file's content is then undefined.
        """
        if self.has_other_names(fd):
            raise OSError(errno.EMLINK, "the file has another hard link")
        if self.size(fd) > size:
            os.ftruncate(fd, size)
        if _fallocate is None:
            raise OSError(errno.EOPNOTSUPP, "no fallocate(2)")
        if _fallocate(fd, _FALLOC_FL_ZERO_RANGE, 0, size):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes durable, and the attributes needed to read them."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Make the file's bytes and attributes durable."""
        os.fsync(fd)

    def fsync_directory(self, directory: Path) -> None:
        """Make the folder's names durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if it is taken."""
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        path.unlink()


def write_all(disk: Disk, fd: int, pieces: Iterable[Piece], offset: int) -> int:
    """Write every piece from `offset` on and return the end of the last one.

    A short write is continued, so that its cause raises an error. A write without progress is EIO.
    """
    todo = _joined(pieces)
    first = 0
    while first < len(todo):
        batch = todo[first : first + IOV_MAX]
        wanted = sum(map(len, batch))
        done = disk.pwritev(fd, batch, offset)
        if done <= 0:
            raise OSError(errno.EIO, f"wrote {done} of {wanted} bytes")
        offset += done
        if done == wanted:
            first += len(batch)
            continue
        while done >= len(todo[first]):
            done -= len(todo[first])
            first += 1
        todo[first] = memoryview(todo[first])[done:]
    return offset


def sync(disk: Disk, fd: int, *, attributes: bool = False) -> None:
    """Make a file durable, with its `attributes` (after its length shrank) if asked.

    A failed sync is ``LogFailed``, never OSError: the page cache may hold what the disk lacks, and
    a second sync may wrongly succeed.
    """
    try:
        if attributes:
            disk.fsync(fd)
        else:
            disk.fdatasync(fd)
    except OSError as exc:
        raise LogFailed(f"a sync failed, the disk cannot be trusted: {exc}") from exc


def sync_directory(disk: Disk, directory: Path) -> None:
    """Make a folder's names durable; ``LogFailed`` as for `sync`."""
    try:
        disk.fsync_directory(directory)
    except OSError as exc:
        raise LogFailed(f"a sync of {directory} failed: {exc}") from exc


def write_zeros(disk: Disk, fd: int, start: int, end: int) -> None:
    """Zero the bytes ``start..end-1`` and sync them."""
    while start < end:
        length = min(end - start, len(_ZEROS))
        start = write_all(disk, fd, [_ZEROS[:length]], start)
    sync(disk, fd)


def is_zeros(pieces: Sequence[Piece], block: int) -> bool:
    """Whether `pieces` is one piece of the zeros of `write_zeros`, in whole blocks."""
    piece = pieces[0]
    return (
        len(pieces) == 1
        and isinstance(piece, memoryview)
        and piece.obj is _ZEROS.obj
        and len(piece) % block == 0
    )


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The bytes of `pieces` in fewer pieces: small neighbours are joined."""
    joined: list[Piece] = []
    run: list[Piece] = []
    for piece in pieces:
        if len(piece) < _SMALL_BYTES:
            run.append(piece)
            continue
        if run:
            joined.append(run[0] if len(run) == 1 else b"".join(run))
            run = []
        joined.append(piece)
    if run:
        joined.append(run[0] if len(run) == 1 else b"".join(run))
    return [piece for piece in joined if len(piece)]


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
