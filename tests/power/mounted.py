"""The process of the file system: ``python -m tests.power.mounted FOLDER``.

    stdin:   cut SEED       every call fails; the surviving data is determined
    stdin:   mount          the folder shows the surviving data, once the old mount is unused
    stdout:  ready | cut    the answer to each

Data reported as synced before the cut survives, and no sync is reported after it.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from typing import Any

import mfusepy

from tests.power.forgetful import File, Folder, Node, after_cut

Attributes = dict[str, Any]
ZERO_RANGE = 0x10
"""Flags of fallocate(2)."""


class ForgetfulFiles(mfusepy.Operations):  # type: ignore[misc]
    """The kernel's calls on a tree. One at a time."""

    use_ns = True

    def __init__(self, root: Folder) -> None:
        self.root = root
        self.off = False
        self._guard = threading.RLock()
        self._open: dict[int, File] = {}
        self._next = 1
        self._born = time.time_ns()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        # Inherited methods stay unchanged: FUSE only registers those that this class defines.
        if name not in _GUARDED:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            with self._guard:
                if self.off:
                    raise mfusepy.FuseOSError(errno.EIO)
                return found(*arguments, **named)

        return call

    def cut(self, seed: int) -> Folder:
        """Determine the surviving data; every later call fails."""
        with self._guard:
            self.off = True
            return after_cut(self.root, seed)

    # Names

    def getattr(self, path: str, fh: int | None = None) -> Attributes:
        node = self._open[fh] if fh in self._open else self._node(path)
        mode, size = (
            (stat.S_IFREG | 0o644, len(node.now))
            if isinstance(node, File)
            else (stat.S_IFDIR | 0o755, 0)
        )
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._born)
        return {
            "st_mode": mode,
            "st_size": size,
            "st_nlink": 1,
            "st_blocks": -(-size // 512),
        } | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._folder(path).now]

    def mkdir(self, path: str, mode: int) -> int:
        self._add(path, Folder())
        return 0

    def rmdir(self, path: str) -> int:
        if self._folder(path).now:
            raise mfusepy.FuseOSError(errno.ENOTEMPTY)
        return self.unlink(path)

    def unlink(self, path: str) -> int:
        self._node(path)
        folder, name = self._place(path)
        folder.change((name,), ())
        return 0

    def link(self, target: str, source: str) -> int:
        self._add(target, self._node(source))
        return 0

    def rename(self, old: str, new: str) -> int:
        node = self._node(old)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        if source is target:
            source.change((old_name,), ((new_name, node),))
        else:
            target.change((), ((new_name, node),))
            source.change((old_name,), ())
        return 0

    def chmod(self, path: str, mode: int) -> int:
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 24, "f_bavail": 1 << 23,
                "f_bfree": 1 << 23, "f_namemax": 255}  # fmt: skip

    # Bytes

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        file = File()
        self._add(path, file)
        return self._opened(file)

    def open(self, path: str, flags: int) -> int:
        node = self._node(path)
        if not isinstance(node, File):
            raise mfusepy.FuseOSError(errno.EISDIR)
        if flags & os.O_TRUNC:
            node.resize(0)
        return self._opened(node)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._open[fh].now[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._open[fh].write(offset, data)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        node = self._open[fh] if fh in self._open else self._node(path)
        assert isinstance(node, File)
        node.resize(length)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        if mode not in (0, ZERO_RANGE):
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        file = self._open[fh]
        if len(file.now) < offset + size:
            file.resize(offset + size)
        if mode:
            file.write(offset, bytes(size))
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._open[fh].sync()
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._folder(path).sync()
        return 0

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    def _opened(self, file: File) -> int:
        number, self._next = self._next, self._next + 1
        self._open[number] = file
        return number

    def _node(self, path: str) -> Node:
        node: Node = self.root
        for name in filter(None, path.split("/")):
            found = node.now.get(name) if isinstance(node, Folder) else None
            if found is None:
                raise mfusepy.FuseOSError(errno.ENOENT)
            node = found
        return node

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise mfusepy.FuseOSError(errno.ENOTDIR)
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        return self._folder(parent), name

    def _add(self, path: str, node: Node) -> None:
        folder, name = self._place(path)
        if name in folder.now:
            raise mfusepy.FuseOSError(errno.EEXIST)
        folder.change((), ((name, node),))


_GUARDED = {
    name
    for name in vars(ForgetfulFiles)
    if not name.startswith("_") and name not in ("use_ns", "cut", "release")
}


def main(mount_point: str) -> None:
    """Mount, cut and mount again, until standard input ends."""
    root = Folder()
    while True:
        files = ForgetfulFiles(root)
        mounted = threading.Thread(target=_mount, args=(files, mount_point), daemon=True)
        mounted.start()
        while not os.path.ismount(mount_point):
            if not mounted.is_alive():
                sys.exit(f"{mount_point}: cannot be mounted")
            time.sleep(0.005)
        print("ready", flush=True)
        order = sys.stdin.readline().split()
        if order:
            root = files.cut(int(order[1]))
            print("cut", flush=True)
            sys.stdin.readline()
        subprocess.run(["umount", "--lazy", mount_point], check=True)
        mounted.join()
        if not order:
            return


def _mount(files: ForgetfulFiles, mount_point: str) -> None:
    mfusepy.FUSE(
        files,
        mount_point,
        foreground=True,
        nothreads=True,
        hard_remove=True,
        attr_timeout=0,
        entry_timeout=0,
    )


if __name__ == "__main__":
    main(sys.argv[1])
