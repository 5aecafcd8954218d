"""An object store in memory that shares its power supply with a disk.

An answered call survives completely; an unanswered one may or may not have taken effect. A
deleted object may reappear after a crash, until another change in its folder is made durable.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from persist.store import AlreadyExists, ObjectInfo, ObjectNotFound, PutInfo
from persist.store.contract import checked_path, checked_prefix
from tests.wal.disks import CrashDisk, PowerLost

if TYPE_CHECKING:
    from typing_extensions import Buffer


class CrashStore:
    """An :class:`persist.store.ObjectStore`; see the module."""

    url = "memory://machine"
    listing_seeks = False

    def __init__(self, disk: CrashDisk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._deleted: dict[str, tuple[bytes, datetime]] = {}

    def after_crash(self, disk: CrashDisk, seed: int) -> CrashStore:
        """Return the store that a restarted machine finds, with its new disk."""
        dice = random.Random(seed)
        store = CrashStore(disk)
        back = {path: found for path, found in self._deleted.items() if dice.random() < 0.5}
        store._objects = back | self._objects
        return store

    def used_by(self, disk: CrashDisk) -> CrashStore:
        """Return the same store, which is elsewhere, as another machine with this disk uses it."""
        store = CrashStore(disk)
        store._objects = self._objects
        return store

    def put(self, path: str, data: Buffer) -> PutInfo:
        """See the contract."""
        return self._write(checked_path(path), bytes(data))

    def create(self, path: str, data: Buffer) -> PutInfo:
        """See the contract."""
        with self._lock:
            if checked_path(path) in self._objects:
                self._disk.spend()
                raise AlreadyExists(path)
            return self._write(path, bytes(data))

    def get(self, path: str) -> bytes:
        """See the contract."""
        self._alive()
        try:
            return self._objects[path][0]
        except KeyError:
            raise ObjectNotFound(path) from None

    def open(self, path: str) -> pa.NativeFile:
        """See the contract."""
        return pa.BufferReader(self.get(path))

    def exists(self, path: str) -> ObjectInfo | None:
        """See the contract."""
        self._alive()
        found = self._objects.get(path)
        return None if found is None else ObjectInfo(path, len(found[0]), found[1])

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See the contract."""
        self._alive()
        checked_prefix(prefix)
        with self._lock:
            found = sorted(
                ObjectInfo(path, len(data), at)
                for path, (data, at) in self._objects.items()
                if path.startswith(prefix) and path > start_after
            )
        return iter(found)

    def delete(self, path: str) -> None:
        """See the contract."""
        with self._lock:
            self._disk.spend()
            found = self._objects.pop(path, None)
            if found is not None:
                self._deleted[path] = found

    def now(self) -> datetime:
        """This machine's clock."""
        return datetime.now(UTC)

    def _write(self, path: str, data: bytes) -> PutInfo:
        with self._lock:
            self._disk.spend()
            at = datetime.now(UTC)
            self._objects[path] = (data, at)
            folder = path.rpartition("/")[0]
            for gone in [p for p in self._deleted if p.rpartition("/")[0] == folder or p == path]:
                del self._deleted[gone]
            # Power may fail between the change and its answer.
            self._disk.spend()
            return PutInfo(len(data), at)

    def _alive(self) -> None:
        if self._disk.lost:
            raise PowerLost
