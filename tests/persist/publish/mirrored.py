"""A store in memory that copies each object to a file, so that engines can read it without syncs.

It also counts the bytes that are written, and the calls.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from persist.store import PutInfo
from tests.drivers.memory_store import MemoryStore


class MirroredStore(MemoryStore):
    """Objects in memory, and in files below ``folder``.

    Attributes:
        written: bytes of each written path, the last write of it.
        calls: the calls of each kind that write or delete.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url, self._folder = f"file://{folder}", folder
        self.written: dict[str, int] = {}
        self.calls: Counter[str] = Counter()

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> PutInfo:
        self.calls["create" if only_if_absent else "put"] += 1
        info = super()._put(path, data, only_if_absent=only_if_absent)
        self.written[path] = info.bytes
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(memoryview(data).cast("B"))
        return info

    def delete(self, path: str) -> None:
        self.calls["delete"] += 1
        super().delete(path)
        (self._folder / path).unlink(missing_ok=True)
