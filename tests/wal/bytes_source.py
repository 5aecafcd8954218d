"""A segment in memory, for scans."""

from __future__ import annotations


class BytesSource:
    """A `wal.scan.Source` of bytes."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._view = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._view)

    def read(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]
