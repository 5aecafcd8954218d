"""Objects as files below one folder.

    put      write a temporary file beside the name, fsync it, rename it over, fsync the folder
    create   the same, but link it to the name, which fails if the name is taken

An object is therefore whole or absent at every moment, also after a power loss (tests/power).
Temporary files (".tmp-<uuid>") never appear in a listing; those left by a crash are harmless. A
folder is durable only once its entry in its parent is synced: each process ensures that once per
folder, also for folders that it did not create, because their creator may not have synced them yet.

The store's clock is this machine's.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from persist.store.contract import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    PutInfo,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
    checked_path,
    checked_prefix,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY = ".tmp-"
FILE_MODE, FOLDER_MODE = 0o640, 0o750
"""The most permissive mode of objects and folders under any umask: read by owner and group only."""
PIECE_BYTES = 1 << 20
"""A larger file is synced in pieces of this size. One sync at the end would keep the disk busy for
long and delay the log's syncs on the same disk.
"""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EROFS}
# The errors of link() on a file system without hard links.
_UNSUITABLE = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NAME = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EILSEQ}


class LocalStore:
    """Objects as files below one folder, which the first write creates; see ``contract``."""

    listing_seeks = False
    """A folder is read whole."""

    def __init__(self, root: Path) -> None:
        """Keep objects below ``root``, an absolute path."""
        self._root = os.fspath(root)
        self.url = f"file://{self._root}"  # not percent-encoded
        # Folders whose entries are known to be on disk. It only grows, except in _publish();
        # a thread that misses another's addition syncs once more, which is harmless.
        self._settled: set[str] = set()
        # The root's inode, once it was seen. Its device is ignored, because a network file system
        # gets another one at each mount.
        self._inode: int | None = None

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def put(self, path: str, data: Buffer) -> PutInfo:
        return self._publish(path, data, os.replace)

    def create(self, path: str, data: Buffer) -> PutInfo:
        return self._publish(path, data, os.link)

    def _publish(self, path: str, data: Buffer, name: Callable[[str, str], None]) -> PutInfo:
        target = self._target(path)
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex}")
        self._check_mounted()
        try:
            self._settle(folder)
            try:
                info = write_synced(temporary, data)
            except FileNotFoundError:  # another program removed the folder
                self._settled.clear()
                self._settle(folder)
                info = write_synced(temporary, data)
            try:
                name(temporary, target)
            except FileExistsError as exc:
                # The winner may not have synced the folder yet, and the caller will rely on the
                # object.
                sync_folder(folder)
                raise AlreadyExists(path) from exc
            finally:
                with suppress(FileNotFoundError):  # a rename took it
                    os.unlink(temporary)
            sync_folder(folder)
        except OSError as exc:
            with suppress(OSError):
                os.unlink(temporary)
            self._check_root(exc)
            raise from_os(exc, f"{self.url}/{path}") from exc
        if self._inode is None:
            self._check_mounted()
        return info

    def _check_mounted(self) -> None:
        """Check that the root is still the same folder.

        An unmounted one is missing or an empty mount point. Nothing may be written into it, because
        the next mount would hide it.

        Raises:
            StoreUnavailable: it is another folder, or missing.
        """
        known = self._inode  # read first: another thread may create and record the root meanwhile
        try:
            inode = os.stat(self._root).st_ino
        except OSError:
            inode = None
        if known is None:
            self._inode = inode or self._inode
        elif inode != known:
            raise StoreUnavailable(
                f"{self.url}: the folder {'is missing' if inode is None else 'is another one'}"
                " since the start of this process: is it still mounted?"
            )

    def _settle(self, folder: str) -> None:
        if folder in self._settled or folder == "/":
            return
        there = os.path.isdir(folder)
        inside = folder == self._root or folder.startswith(self._root.rstrip("/") + "/")
        if inside or not there:
            parent = os.path.dirname(folder)
            self._settle(parent)
            if not there:
                with suppress(FileExistsError):
                    os.mkdir(folder, FOLDER_MODE)
            try:
                sync_folder(parent)
            except PermissionError:
                # The parent of the root may be closed to us; then we created nothing in it.
                if not there:
                    raise
        self._settled.add(folder)

    def get(self, path: str) -> bytes:
        with self._errors(path):
            return Path(self._target(path)).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        """A random access file; it stays whole if the path is overwritten or deleted.

        Read with ``pread`` and not mapped, because mapped pages count as the process's memory.
        """
        with self._errors(path):
            return pa.OSFile(self._target(path), mode="r")

    def exists(self, path: str) -> ObjectInfo | None:
        try:
            with self._errors(path):
                found = os.stat(self._target(path))
        except ObjectNotFound:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return ObjectInfo(path, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self._check_mounted()
        try:
            yield from self._walk(checked_prefix(prefix), start_after)
        except OSError as exc:
            raise from_os(exc, f"{self.url}/{prefix}") from exc

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        first = start_after.removeprefix(prefix).partition("/")[0]
        if not start_after.startswith(prefix):
            first = ""
        for name in _entries(os.path.join(self._root, prefix), first):
            path = prefix + name
            if name.endswith("/"):
                # A folder's content sorts before start_after unless it contains it or is greater.
                if path > start_after or start_after.startswith(path):
                    yield from self._walk(path, start_after)
            elif path > start_after and (info := self.exists(path)) is not None:
                yield info

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders directly below ``prefix``, also of empty ones."""
        self._check_mounted()
        try:
            found = _entries(os.path.join(self._root, checked_prefix(prefix)), "")
        except OSError as exc:
            raise from_os(exc, f"{self.url}/{prefix}") from exc
        return (name[:-1] for name in found if name.endswith("/"))

    def delete(self, path: str) -> None:
        """Remove the object; its folder stays, because a writer may be about to use it."""
        with suppress(ObjectNotFound), self._errors(path):
            os.unlink(self._target(path))

    def now(self) -> datetime:
        return datetime.now(UTC)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Translate the system's errors about an object."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
            self._check_root(exc)
            self._check_mounted()  # an object of an unmounted store is not missing
            raise ObjectNotFound(path) from exc
        except OSError as exc:
            if os.path.isdir(self._target(path)):  # Arrow does not say so
                raise ObjectNotFound(path) from exc
            raise from_os(exc, f"{self.url}/{path}") from exc

    def _check_root(self, exc: OSError) -> None:
        """Raise ``StoreUnsuitable`` if a file has the name of the store's folder or of one
        above.
        """
        if not isinstance(exc, NotADirectoryError | FileExistsError):
            return
        for folder in (Path(self._root), *Path(self._root).parents):
            if folder.exists() and not folder.is_dir():
                raise StoreUnsuitable(
                    f"{self.url}: {folder} is a file, but the store must be a folder"
                ) from exc

    def _target(self, path: str) -> str:
        if any(part.startswith(TEMPORARY) for part in checked_path(path).split("/")):
            raise ValueError(f"{path!r}: names that begin with {TEMPORARY!r} are not listed")
        return os.path.join(self._root, path)


def write_synced(target: str, data: Buffer) -> PutInfo:
    """Write a new file and sync its bytes, but not its folder."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest[:PIECE_BYTES]) :]
            if rest:
                os.fdatasync(descriptor)
        os.fsync(descriptor)
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return PutInfo(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(folder: str, first: str) -> list[str]:
    """A folder's names in the order of the paths below it: a subfolder sorts with its '/'.

    Names whose paths all sort before ``first`` are left out: of a hundred thousand versions a
    reader wants the last.
    """
    try:
        with os.scandir(folder) as found:
            return sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in found
                if (entry.name >= first or first.startswith(entry.name))
                and not entry.name.startswith(TEMPORARY)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def from_os(exc: OSError, where: str) -> StoreError:
    """The store's error for ``exc``, which occurred at the URL ``where``."""
    cause = exc.strerror or str(exc)
    if exc.errno in _FULL:
        return StoreFull(f"{where}: {cause}")
    if exc.errno in _DENIED:
        return StoreDenied(f"{where}: {cause}")
    if exc.errno in _UNSUITABLE:
        return StoreUnsuitable(f"{where}: {cause} (the file system must support hard links)")
    if exc.errno in _NAME:
        return StoreError(f"{where}: the file system cannot hold this name: {cause}")
    return StoreUnavailable(f"{where}: {cause}")
