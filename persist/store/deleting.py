"""Deletes many objects, several at a time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from persist.store.contract import ObjectStore

_DELETERS = 8
_AT_ONCE = 1000


def delete_all(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete these objects in any order.

    Raises:
        StoreError: As :meth:`ObjectStore.delete`; others may be deleted already.
    """
    left = iter(paths)
    with ThreadPoolExecutor(_DELETERS, thread_name_prefix="clean-up") as pool:
        while some := list(islice(left, _AT_ONCE)):
            for _ in pool.map(store.delete, some):
                pass
