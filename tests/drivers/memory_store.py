"""An in-memory store for tests with many objects where the kind of store does not matter.

It passes the same contract tests as the real stores.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from persist.store import AlreadyExists, ObjectInfo, ObjectNotFound, PutInfo
from persist.store.contract import checked_path, checked_prefix


class MemoryStore:
    """Objects in this process's memory, with the promises of ``persist.store.contract``."""

    listing_seeks = True

    def __init__(self) -> None:
        self.url = "memory://tests"
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._paths: list[str] = []

    def put(self, path: str, data: Any) -> PutInfo:
        return self._put(path, data)

    def create(self, path: str, data: Any) -> PutInfo:
        return self._put(path, data, only_if_absent=True)

    def _put(self, path: str, data: Any, *, only_if_absent: bool = False) -> PutInfo:
        checked_path(path)
        content, now = bytes(memoryview(data).cast("B")), self.now()
        with self._lock:
            if path not in self._objects:
                insort(self._paths, path)
            elif only_if_absent:
                raise AlreadyExists(path)
            self._objects[path] = (content, now)
        return PutInfo(len(content), now)

    def get(self, path: str) -> bytes:
        return self._get(path)[0]

    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(path))

    def exists(self, path: str) -> ObjectInfo | None:
        return self._info(path)

    def _info(self, path: str) -> ObjectInfo | None:
        try:
            data, at = self._get(path)
        except ObjectNotFound:
            return None
        return ObjectInfo(path, len(data), at)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            begin = bisect_left(self._paths, checked_prefix(prefix))
            begin = max(begin, bisect_right(self._paths, start_after))
            paths = self._paths[begin:]
        for path in paths:
            if not path.startswith(prefix):
                break
            if (info := self._info(path)) is not None:
                yield info

    def delete(self, path: str) -> None:
        with self._lock:
            if self._objects.pop(checked_path(path), None) is not None:
                self._paths.remove(path)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _get(self, path: str) -> tuple[bytes, datetime]:
        with self._lock:
            found = self._objects.get(checked_path(path))
        if found is None:
            raise ObjectNotFound(path)
        return found
