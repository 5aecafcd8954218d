"""A store whose caller is paused before its n-th call, as by SIGSTOP, while others continue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from persist.store import ObjectInfo, ObjectStore, PutInfo

T = TypeVar("T")
PATIENCE_S = 30.0


class PausingStore:
    """Passes every call on to ``inner``; waits before call number ``pause_at`` (from 0)."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.pause_at: int | None = None
        self.calls: list[tuple[str, str]] = []
        """(call, path); the last one is the call before which it waits."""
        self.still = threading.Event()
        """Set when the caller is paused."""
        self.go_on = threading.Event()

    def _do(self, call: str, path: str, work: Callable[[], T]) -> T:
        self.calls.append((call, path))
        if self.pause_at is not None and len(self.calls) == self.pause_at + 1:
            self.still.set()
            assert self.go_on.wait(PATIENCE_S)
        return work()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def listing_seeks(self) -> bool:
        return self._inner.listing_seeks

    def put(self, path: str, data: Any) -> PutInfo:
        return self._do("put", path, lambda: self._inner.put(path, data))

    def create(self, path: str, data: Any) -> PutInfo:
        return self._do("create", path, lambda: self._inner.create(path, data))

    def get(self, path: str) -> bytes:
        return self._do("get", path, lambda: self._inner.get(path))

    def open(self, path: str) -> Any:
        return self._do("open", path, lambda: self._inner.open(path))

    def exists(self, path: str) -> ObjectInfo | None:
        return self._do("exists", path, lambda: self._inner.exists(path))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._do("list", prefix, lambda: iter(list(self._inner.list(prefix, start_after))))

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self._inner.delete(path))

    def now(self) -> datetime:
        return self._inner.now()
