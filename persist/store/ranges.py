"""A remote object as a random access file: it fetches what is asked for, and a little ahead.

Small reads (a Parquet footer, short column chunks side by side) are served from one block that
was read ahead; a read as long as the block or longer goes straight through, so that nothing is
fetched or held twice. A file has one reader at a time, as pyarrow sees to.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa

from persist.store.errors import StoreUnavailable

# A request costs about as long as 128 KiB take to arrive at 10 MB/s; twice that wastes little.
READ_AHEAD_BYTES = 256 * 1024


class RangeFile:
    """The part of Python's binary file protocol that ``pyarrow.PythonFile`` reads through."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        """Read an object of ``size`` bytes through ``fetch(start, end)``, ``end`` exclusive."""
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._block_start = 0
        self._block = b""
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        """Read up to ``count`` bytes from where the file stands, fewer only at its end."""
        start = self._at
        end = self._size if count < 0 else min(start + count, self._size)
        if start >= end:
            return b""
        data = self._bytes(start, end)
        self._at = end
        return data

    def _bytes(self, start: int, end: int) -> bytes:
        if end - start >= READ_AHEAD_BYTES:
            return self._fetched(start, end)
        block_end = self._block_start + len(self._block)
        if not (self._block_start <= start and end <= block_end):
            self._block = self._fetched(start, min(start + READ_AHEAD_BYTES, self._size))
            self._block_start = start
        offset = start - self._block_start
        return self._block[offset : offset + end - start]

    def _fetched(self, start: int, end: int) -> bytes:
        data = self._fetch(start, end)
        if len(data) != end - start:
            raise StoreUnavailable(f"asked for bytes {start}..{end - 1}, got {len(data)} bytes")
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset`` from the start, the position or the end; the new position."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """The position, in bytes from the start."""
        return self._at

    def close(self) -> None:
        """Let the block go."""
        self._block = b""
        self.closed = True


def arrow_file(size: int, fetch: Callable[[int, int], bytes]) -> pa.NativeFile:
    """The same as a pyarrow file, ready for ``pyarrow.parquet``."""
    return pa.PythonFile(RangeFile(size, fetch), mode="r")
