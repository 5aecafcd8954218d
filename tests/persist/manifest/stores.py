"""A real store with injected faults."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from persist.store import (
    ObjectInfo,
    ObjectStore,
    PutInfo,
    StoreError,
    StoreUnavailable,
)


class FaultyStore:
    """Passes every call on to ``inner``, and counts it; ``plan`` lets calls fail.

    A plan is (call, part of the path): ``before`` fails instead of the call, ``after`` carries the
    call out and loses the answer.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._plans: list[tuple[str, str, str]] = []
        # Changelogs are read by several threads.
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.bytes_put = 0
        # Called once, before the next create, for changes by another process at that moment.
        self.meanwhile: Callable[[], object] | None = None

    def plan(self, when: str, call: str, contains: str = "", times: int = 1) -> None:
        """Let the next ``times`` such calls fail ``before`` or ``after`` they are carried out."""
        self._plans += [(when, call, contains)] * times

    def recover(self) -> None:
        """Remove all plans."""
        self._plans.clear()

    def _do(self, call: str, path: str, work: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls[call] += 1
            plan = next((p for p in self._plans if p[1] == call and p[2] in path), None)
            if plan is not None:
                self._plans.remove(plan)
        if plan is None:
            return work()
        if plan[0] == "after":
            with suppress(StoreError):  # a refusal is an answer too, and is lost as well
                work()
        raise StoreUnavailable(f"{call} {path}: no answer, on purpose")

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def listing_seeks(self) -> bool:
        return self._inner.listing_seeks

    def put(self, path: str, data: Any) -> PutInfo:
        self.bytes_put += len(data)
        return self._do("put", path, lambda: self._inner.put(path, data))  # type: ignore[no-any-return]

    def create(self, path: str, data: Any) -> PutInfo:
        self.bytes_put += len(data)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return self._do("create", path, lambda: self._inner.create(path, data))  # type: ignore[no-any-return]

    def get(self, path: str) -> bytes:
        return self._do("get", path, lambda: self._inner.get(path))  # type: ignore[no-any-return]

    def open(self, path: str) -> Any:
        return self._do("open", path, lambda: self._inner.open(path))

    def exists(self, path: str) -> ObjectInfo | None:
        return self._do("exists", path, lambda: self._inner.exists(path))  # type: ignore[no-any-return]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._do("list", prefix, lambda: self._inner.list(prefix, start_after))  # type: ignore[no-any-return]

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self._inner.delete(path))

    def now(self) -> Any:
        return self._inner.now()


class ClockedStore(FaultyStore):
    """A store with a clock that the test moves; it can also fail exactly one later call.

    Objects keep the time at which they were put through it.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ahead = timedelta()
        self.fail_at: int | None = None
        self.failed = False
        self.deleted: list[str] = []
        self.on_delete: Callable[[str], object] = lambda path: None
        self.on_call: Callable[[str, str], object] = lambda call, path: None
        self._lock = threading.Lock()
        self._times: dict[str, datetime] = {}

    def advance(self, **by: float) -> None:
        self.ahead += timedelta(**by)

    def _do(self, call: str, path: str, work: Callable[[], Any]) -> Any:
        self.on_call(call, path)
        with self._lock:
            if self.fail_at is not None:
                self.fail_at -= 1
                if self.fail_at < 0:  # this call and all later ones, as the process has ended
                    self.failed = True
                    raise StoreUnavailable(f"{call} {path}: ended here, on purpose")
        return super()._do(call, path, work)

    def put(self, path: str, data: Any) -> PutInfo:
        return self._dated(path, super().put(path, data))

    def create(self, path: str, data: Any) -> PutInfo:
        return self._dated(path, super().create(path, data))

    def delete(self, path: str) -> None:
        self.on_delete(path)
        super().delete(path)
        self.deleted.append(path)

    def restore(self, path: str, data: bytes) -> None:
        """Put an object back with its original time."""
        self._inner.put(path, data)

    def exists(self, path: str) -> ObjectInfo | None:
        found = super().exists(path)
        return None if found is None else self._as_dated(found)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return map(self._as_dated, super().list(prefix, start_after))

    def now(self) -> datetime:
        now: datetime = self._do("now", "", super().now)
        return now + self.ahead

    def _dated(self, path: str, info: PutInfo) -> PutInfo:
        self._times[path] = info.at + self.ahead
        return info._replace(at=self._times[path])

    def _as_dated(self, info: ObjectInfo) -> ObjectInfo:
        return info._replace(at=self._times.get(info.path, info.at))
