"""Files that others replace while we run: certificates, keys, tokens.

Law of this file: a look costs one ``stat`` per file, and the bytes of several files are of one
moment. A link that is pointed elsewhere, as Kubernetes does it for a mounted secret, is a change.
Nothing here waits for a writer: what is no regular file, as a FIFO, is refused and not read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MOST_BYTES = 16 << 20
"""A larger file is none of those that are meant."""
_TRIES = 5
Mark = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles:
    """Some files that are read together. Not thread-safe: its owner locks."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """Nothing is read before :meth:`read`."""
        self._paths = tuple(Path(path) for path in paths)
        self._seen: Mark | None = None

    def changed(self) -> bool:
        """Return whether a file was written, replaced or removed since :meth:`read` began."""
        return self._seen != self._mark()

    def read(self) -> tuple[bytes, ...]:
        """Return the bytes of each file, in order, all of one moment.

        Raises:
            OSError: As :func:`read_regular`; or they were replaced all the time.
        """
        for _ in range(_TRIES):
            self._seen = self._mark()
            found = tuple(read_regular(path)[0] for path in self._paths)
            if not self.changed():
                return found
        raise OSError(f"{', '.join(map(str, self._paths))}: written all the time")

    def _mark(self) -> Mark:
        return tuple(map(_mark, self._paths))


def read_regular(path: Path, most: int = MOST_BYTES) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a file, and what it looked like then.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than ``most``.
    """
    with open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            what = "a FIFO" if stat.S_ISFIFO(found.st_mode) else "a device"
            raise OSError(errno.EINVAL, f"is {what}; it has to be a regular file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} B", str(path))
    return data, found


def _at_once(path: str, flags: int) -> int:
    """Open a file; of a FIFO, without waiting for whoever writes it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
