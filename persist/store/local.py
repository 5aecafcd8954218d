"""Objects as files below one folder.

    put      write a temporary file beside the name, fsync it, rename it over, fsync the folder
    create   the same, but link it to the name, which fails when the name is taken

An object is thereby whole or absent at every moment, also after a power loss. Temporary files
(".tmp-<uuid>") never show in a listing; those a crash left behind are harmless. A folder holds
only once its entry in its parent is synced: each process sees to that once per folder, also for
folders it did not make, because whoever made one may not have synced it yet.

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
    NotFound,
    ObjectInfo,
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
"""The most that objects and folders may be under any umask: the owner's, and read by the group."""
PIECE_BYTES = 1 << 20
"""A larger file is synced each time that so much is written. All at once at the end, the disk would
be busy for as long as that takes, and the log, which may be on it too, would wait to be synced."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EROFS}
# What a file system answers to link() when it has no hard links.
_UNSUITABLE = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NAME = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EILSEQ}


class LocalStore:
    """Objects as files below one folder, which the first write makes; ``contract`` has the rest."""

    listing_seeks = False
    """A folder is read whole."""

    def __init__(self, root: Path) -> None:
        """Keep objects below ``root``, an absolute path."""
        self._root = os.fspath(root)
        self.url = f"file://{self._root}"  # not percent-encoded
        # Folders whose entries are known to be on disk. Only ever grows, but for _publish();
        # a thread that misses another's addition syncs once more, which is harmless.
        self._settled: set[str] = set()
        # The root's inode, once it was seen. Its device is not looked at: that of a network's file
        # system is another one after each mount.
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
            except FileNotFoundError:  # someone removed the folder behind our back
                self._settled.clear()
                self._settle(folder)
                info = write_synced(temporary, data)
            try:
                name(temporary, target)
            except FileExistsError as exc:
                # The winner may not have synced the folder yet, and the caller will build on
                # what it finds there.
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
        """See that the root is the folder that it was.

        An unmounted one is gone or an empty mount point, into which nothing may be put: it would be
        hidden by the next mount.

        Raises:
            StoreUnavailable: it is another one, or gone.
        """
        known = self._inode  # first: another thread may make the root, and note it, meanwhile
        try:
            inode = os.stat(self._root).st_ino
        except OSError:
            inode = None
        if known is None:
            self._inode = inode or self._inode
        elif inode != known:
            raise StoreUnavailable(
                f"{self.url}: the folder is {'gone' if inode is None else 'another one'} since this"
                " process has begun: is it not mounted any more?"
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
                # The folder above the root may be closed to us; if we made nothing in it,
                # there is nothing of ours to sync.
                if not there:
                    raise
        self._settled.add(folder)

    def get(self, path: str) -> bytes:
        with self._errors(path):
            return Path(self._target(path)).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        """A random access file; it stays whole when the path is overwritten or deleted.

        Read with ``pread`` and not mapped: mapped pages count as the process's memory.
        """
        with self._errors(path):
            return pa.OSFile(self._target(path), mode="r")

    def exists(self, path: str) -> ObjectInfo | None:
        try:
            with self._errors(path):
                found = os.stat(self._target(path))
        except NotFound:
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
                # All below a folder sorts before start_after unless it is in there or greater.
                if path > start_after or start_after.startswith(path):
                    yield from self._walk(path, start_after)
            elif path > start_after and (info := self.exists(path)) is not None:
                yield info

    def delete(self, path: str) -> None:
        """The folder of the object stays: a writer may be on its way in."""
        with suppress(NotFound), self._errors(path):
            os.unlink(self._target(path))

    def now(self) -> datetime:
        return datetime.now(UTC)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """The system's errors, met at an object, as the store's."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
            self._check_root(exc)
            self._check_mounted()  # what is not mounted is not missing
            raise NotFound(path) from exc
        except OSError as exc:
            if os.path.isdir(self._target(path)):  # Arrow does not say so
                raise NotFound(path) from exc
            raise from_os(exc, f"{self.url}/{path}") from exc

    def _check_root(self, exc: OSError) -> None:
        """Raise ``StoreUnsuitable`` where a file stands in the way of the store's own folder."""
        if not isinstance(exc, NotADirectoryError | FileExistsError):
            return
        for folder in (Path(self._root), *Path(self._root).parents):
            if folder.exists() and not folder.is_dir():
                raise StoreUnsuitable(
                    f"{self.url}: {folder} is a file, and the store has to be a folder"
                ) from exc

    def _target(self, path: str) -> str:
        if any(part.startswith(TEMPORARY) for part in checked_path(path).split("/")):
            raise ValueError(f"{path!r}: names that begin with {TEMPORARY!r} are not listed")
        return os.path.join(self._root, path)


def write_synced(target: str, data: Buffer) -> PutInfo:
    """Write a new file and sync its bytes; its folder is not synced by this."""
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
    """Have the names in a folder on its disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(folder: str, first: str) -> list[str]:
    """A folder's names in the order of the paths below it: a subfolder sorts with its '/'.

    Names of which all paths sort before ``first`` are left out: of a hundred thousand versions a
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
    """The error to raise for ``exc``, met at the URL ``where``."""
    cause = exc.strerror or str(exc)
    if exc.errno in _FULL:
        return StoreFull(f"{where}: {cause}")
    if exc.errno in _DENIED:
        return StoreDenied(f"{where}: {cause}")
    if exc.errno in _UNSUITABLE:
        return StoreUnsuitable(f"{where}: {cause} (the file system has to allow hard links)")
    if exc.errno in _NAME:
        return StoreError(f"{where}: the file system cannot hold this name: {cause}")
    return StoreUnavailable(f"{where}: {cause}")
