"""Object storage: whole objects under names, written atomically, created at most once.

``open_store`` makes a store of a URL, ``check_store`` asks it at start-up whether it can do what
the manifest needs, and ``ObjectStore`` (in ``contract``) says what every store promises. All calls
block and may come from any thread. No store retries by itself, apart from a conflict of two
conditional writes: callers decide what waiting costs, and wait by the policy in ``retry``. Errors
are sorted by who has to act (``errors``).

    local      files: temporary file, fsync, rename or link, fsync of the folder
    s3         one single PUT per write, If-None-Match for a create
    generic    other fsspec file systems that bring their own conditional create

Safe to import on Spark executors: no trio, and boto only where an ``s3://`` URL is opened.
"""

from __future__ import annotations

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
from persist.store.opening import open_store
from persist.store.probe import check_store
from persist.store.retry import StoreRetry, Tell, retry, retry_async

__all__ = [
    "AlreadyExists",
    "NotFound",
    "ObjectInfo",
    "ObjectStore",
    "PutInfo",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreRetry",
    "StoreUnavailable",
    "StoreUnsuitable",
    "Tell",
    "check_store",
    "open_store",
    "retry",
    "retry_async",
]
