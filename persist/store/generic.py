"""Objects in any other fsspec file system that really creates a file only if it is absent.

fsspec's own ``pipe_file(mode="create")`` checks first and writes afterwards, so two writers can
both pass. Only a file system with its own implementation is accepted, and the start-up probe then
tests it. A file system in a process's memory is refused because its content dies with the process.
The clock is that of the reported file times.

This module also turns a remote object into a random access file. Small reads (a Parquet footer,
short column chunks side by side) are served from one block that was read ahead; a read of a block
or more is passed through, so nothing is fetched or held twice.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from persist.store.contract import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    PutInfo,
    StoreDenied,
    StoreUnavailable,
    StoreUnsuitable,
    checked_path,
    checked_prefix,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A request takes about as long as 128 KiB at 10 MB/s; twice that wastes little.
READ_AHEAD_BYTES = 256 * 1024


class RangeFile:
    """The part of Python's binary file protocol that ``pyarrow.PythonFile`` uses. One reader at a
    time.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        """Read an object of ``size`` bytes through ``fetch(start, end)``, ``end`` exclusive."""
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._block_start = 0
        self._block = b""
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        """Read up to ``count`` bytes at the position; fewer only at the end."""
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
        """Move to ``offset`` from the start, the position or the end; return the new position."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        """The position, in bytes from the start."""
        return self._at

    def close(self) -> None:
        """Release the block."""
        self._block = b""
        self.closed = True


def arrow_file(size: int, fetch: Callable[[int, int], bytes]) -> pa.NativeFile:
    """The same as a pyarrow file, for ``pyarrow.parquet``."""
    return pa.PythonFile(RangeFile(size, fetch), mode="r")


# The names of the time of the last write in file systems' details, best first.
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "timeModified", "created")


class FsspecStore:
    """Objects in a file system of fsspec; ``contract`` states what the calls promise."""

    listing_seeks = True
    """A listing may take a request per thousand names, but a look-up takes one as well."""

    def __init__(self, fs: AbstractFileSystem, root: str, url: str) -> None:
        """Keep objects below ``root``, a path of ``fs``; ``url`` names the store in messages.

        Raises:
            StoreUnsuitable: the file system is known not to do what a store must.
        """
        if "memory" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
            raise StoreUnsuitable(f"{url}: memory is not durable; use file:// or an object store")
        if not _creates_conditionally(fs):
            raise StoreUnsuitable(
                f"{url}: {type(fs).__name__} cannot create an object only if it is absent"
            )
        self._fs = fs
        self._root = root.rstrip("/")
        self.url = url

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def put(self, path: str, data: Buffer) -> PutInfo:
        return self._write(path, bytes(data), "overwrite")

    def create(self, path: str, data: Buffer) -> PutInfo:
        return self._write(path, bytes(data), "create")

    def _write(self, path: str, data: bytes, mode: str) -> PutInfo:
        full = self._full(path)
        with self._errors(path):
            self._fs.pipe_file(full, data, mode=mode)
            return PutInfo(len(data), self._time(full, self._fs.info(full)))

    def get(self, path: str) -> bytes:
        full = self._full(path)
        with self._errors(path):
            return bytes(self._fs.cat_file(full))

    def open(self, path: str) -> pa.NativeFile:
        there = self.exists(path)
        if there is None:
            raise ObjectNotFound(path)
        full = self._full(path)

        def fetch(start: int, end: int) -> bytes:
            with self._errors(path):
                return bytes(self._fs.cat_file(full, start=start, end=end))

        return arrow_file(there.bytes, fetch)

    def exists(self, path: str) -> ObjectInfo | None:
        full = self._full(path)
        with suppress(ObjectNotFound), self._errors(path):
            details = self._fs.info(full)
            if details["type"] == "file":
                return ObjectInfo(path, int(details["size"]), self._time(full, details))
        return None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects below ``prefix`` in ascending order of path, held in memory."""
        below = f"{self._root}/{checked_prefix(prefix)}".rstrip("/")
        found: dict[str, Any] = {}
        with suppress(ObjectNotFound), self._errors(prefix):
            self._fs.invalidate_cache()
            found = self._fs.find(below, detail=True)
        for full in sorted(found):
            path = full[len(self._root) + 1 :]
            # find() of a file finds the file itself
            if path > start_after and path.startswith(prefix):
                yield ObjectInfo(path, int(found[full]["size"]), self._time(full, found[full]))

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders directly below ``prefix``, from one listing of all objects."""
        parts = (info.path.removeprefix(prefix).partition("/") for info in self.list(prefix))
        return iter(dict.fromkeys(name for name, is_folder, _ in parts if is_folder))

    def delete(self, path: str) -> None:
        full = self._full(path)
        with suppress(ObjectNotFound), self._errors(path):
            self._fs.rm_file(full)

    def now(self) -> datetime:
        """The time of a file that is written for this and removed again."""
        path = f"_ingesters/_clock/{uuid.uuid4().hex}"
        try:
            return self.put(path, b"").at
        finally:
            self.delete(path)

    def _time(self, full: str, details: dict[str, Any]) -> datetime:
        value = next((details[name] for name in _TIMES if details.get(name)), None)
        if value is None:
            try:
                value = self._fs.modified(full)
            except NotImplementedError as exc:
                raise StoreUnsuitable(f"{self.url}: reports no times of its files") from exc
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        when: datetime = value
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)

    def _full(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Translate the file system's errors about an object."""
        try:
            yield
        except Exception as exc:
            raise self._error(exc, path) from exc

    def _error(self, exc: Exception, path: str) -> Exception:
        cause = f"{self.url}/{path}: {type(exc).__name__}: {exc}"
        if isinstance(exc, StoreUnsuitable):
            return exc
        if isinstance(exc, FileNotFoundError):
            return ObjectNotFound(path)
        if isinstance(exc, FileExistsError):
            return AlreadyExists(path)
        if isinstance(exc, PermissionError):
            return StoreDenied(cause)
        if isinstance(exc, NotImplementedError):
            return StoreUnsuitable(cause)
        return StoreUnavailable(cause)


def _creates_conditionally(fs: AbstractFileSystem) -> bool:
    """Whether the class has its own ``pipe_file`` instead of fsspec's check-then-write."""
    if isinstance(fs, AsyncFileSystem):
        return type(fs)._pipe_file is not AsyncFileSystem._pipe_file
    return type(fs).pipe_file is not AbstractFileSystem.pipe_file
