"""An in-memory copy of a store's content, for many reads of a slow store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NoReturn

from persist.store import ObjectInfo, ObjectNotFound, ObjectStore

_READERS = 4


class StoreCopy:
    """Read-only objects in memory."""

    url = "copy://"
    listing_seeks = True

    def __init__(self, infos: list[ObjectInfo], contents: dict[str, bytes]) -> None:
        self._infos = infos
        self._contents = contents

    @classmethod
    def of(cls, store: ObjectStore, prefix: str, *, without: str) -> StoreCopy:
        """All objects below ``prefix``; only the names of those that end in ``without``."""
        infos = list(store.list(prefix))
        paths = [info.path for info in infos if not info.path.endswith(without)]
        with ThreadPoolExecutor(_READERS) as threads:
            return cls(infos, dict(zip(paths, threads.map(store.get, paths), strict=True)))

    def get(self, path: str) -> bytes:
        try:
            return self._contents[path]
        except KeyError:
            raise ObjectNotFound(path) from None

    def open(self, path: str) -> Any:
        raise ObjectNotFound(path)

    def exists(self, path: str) -> ObjectInfo | None:
        return next((info for info in self._infos if info.path == path), None)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in self._infos:
            if info.path.startswith(prefix) and info.path > start_after:
                yield info

    def now(self) -> datetime:
        return datetime.now(UTC)

    def put(self, path: str, data: object) -> NoReturn:
        raise AssertionError(f"{path}: a copy is only read")

    create = put

    def delete(self, path: str) -> None:
        raise AssertionError(f"{path}: a copy is only read")
