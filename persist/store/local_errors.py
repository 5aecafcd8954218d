"""Which store error an error of the operating system is."""

from __future__ import annotations

import errno

from persist.store.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EROFS}
# What a file system answers to link() when it has no hard links.
_UNSUITABLE = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NAME = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EILSEQ}


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
