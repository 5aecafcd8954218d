"""A store whose requests are noted: how many, what came of them, how long they took.

Law of this file: it changes nothing of what a store promises, answers or raises, and adds no
request. Times of the store's clock are not noted: local files have none to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from persist.store.contract import ObjectInfo, ObjectStore, PutInfo
from persist.store.errors import (
    AlreadyExists,
    NotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)
from persist.store.standing import Outcome, StoreWatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (NotFound, "not_found"),
    (AlreadyExists, "exists"),
    (StoreFull, "full"),
    (StoreUnavailable, "away"),
    (StoreDenied, "denied"),
    (StoreUnsuitable, "failed"),
    (OSError, "failed"),
)


class WatchedStore:
    """Any store, with a watch on it; ``contract`` says what its calls promise."""

    def __init__(self, store: ObjectStore, watch: StoreWatch) -> None:
        self._store = store
        self._watch = watch

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def reads(self) -> bool:
        """Whether reads are answered, by what the last ones have come to."""
        return self._watch.standing().reads

    @property
    def listing_seeks(self) -> bool:
        return self._store.listing_seeks

    def put(self, path: str, data: Buffer) -> PutInfo:
        return self._noted("put", lambda: self._store.put(path, data))

    def create(self, path: str, data: Buffer) -> PutInfo:
        return self._noted("create", lambda: self._store.create(path, data))

    def get(self, path: str) -> bytes:
        return self._noted("get", lambda: self._store.get(path))

    def open(self, path: str) -> pa.NativeFile:
        return self._noted("open", lambda: self._store.open(path))

    def exists(self, path: str) -> ObjectInfo | None:
        return self._noted("exists", lambda: self._store.exists(path))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        listed = self._failures_noted("list", lambda: self._store.list(prefix, start_after))
        # What the caller does between two objects is not the store's time.
        first = self._noted("list", lambda: next(listed, None))
        if first is None:
            return
        yield first
        while (following := self._failures_noted("list", lambda: next(listed, None))) is not None:
            yield following

    def delete(self, path: str) -> None:
        self._noted("delete", lambda: self._store.delete(path))

    def now(self) -> datetime:
        return self._store.now()

    def _noted(self, operation: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        with self._watch.under_way(operation):
            found = self._failures_noted(operation, call)
        self._watch.note(operation, "ok", time.monotonic() - began)
        return found

    def _failures_noted(self, operation: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return call()
        except (StoreError, OSError) as exc:
            outcome = _outcome_of(exc)
            if outcome is not None:
                self._watch.note(operation, outcome, time.monotonic() - began, str(exc))
            raise


def _outcome_of(error: BaseException) -> Outcome | None:
    """What came of a request that has raised; None where the name was refused before it was one."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), None)
