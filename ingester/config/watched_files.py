"""Files that others replace while we run: certificates, keys, tokens.

Law of this file: a look costs one ``stat`` per file, and the bytes of several files are of one
moment. A link that is pointed elsewhere, as Kubernetes does it for a mounted secret, is a change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

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
            OSError: One cannot be read; or they were replaced all the time.
        """
        for _ in range(_TRIES):
            self._seen = self._mark()
            found = tuple(path.read_bytes() for path in self._paths)
            if not self.changed():
                return found
        raise OSError(f"{', '.join(map(str, self._paths))}: written all the time")

    def _mark(self) -> Mark:
        return tuple(map(_mark, self._paths))


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
