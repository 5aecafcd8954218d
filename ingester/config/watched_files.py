"""Files that others replace while the process runs: certificates, keys, tokens.

A check costs one ``stat`` per file. The contents of several files are from the same moment. A
retargeted symbolic link, as Kubernetes makes for mounted secrets, counts as a change. Only regular
files are read, so a FIFO does not block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MOST_BYTES = 16 << 20
"""The largest file that is read."""
_TRIES = 5
Mark = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles:
    """Files that are read together. Not thread-safe: the owner locks."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """Nothing is read before :meth:`read`."""
        self._paths = tuple(Path(path) for path in paths)
        self._seen: Mark | None = None

    def changed(self) -> bool:
        """Return whether a file was written, replaced or removed since the last :meth:`read`."""
        return self._seen != self._mark()

    def read(self) -> tuple[bytes, ...]:
        """Return the contents of the files, in order, all from the same moment.

        Raises:
            OSError: as :func:`read_regular`, or the files kept changing.
        """
        for _ in range(_TRIES):
            self._seen = self._mark()
            found = tuple(read_regular(path)[0] for path in self._paths)
            if not self.changed():
                return found
        raise OSError(f"{', '.join(map(str, self._paths))}: keep changing")

    def _mark(self) -> Mark:
        return tuple(map(_mark, self._paths))


def read_regular(path: Path, most: int = MOST_BYTES) -> tuple[bytes, os.stat_result]:
    """Return a file's contents and its ``stat`` at that time.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger than ``most``.
    """
    with open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            what = "a FIFO" if stat.S_ISFIFO(found.st_mode) else "a device"
            raise OSError(errno.EINVAL, f"is {what}; it must be a regular file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} B", str(path))
    return data, found


def _at_once(path: str, flags: int) -> int:
    """Open a file; a FIFO opens without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
