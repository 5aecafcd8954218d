"""Small objects that are created once and never changed, read once for each store of a process.

Law of this file: an object is known by its path, size and time, so that one that somebody has
deleted and made anew is read anew. Each listing is a new one: what is there is never taken from
memory, only what is in it. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from persist.store import ObjectInfo, ObjectStore

MOST_KNOWN = 1 << 16
"""So many objects of a store are remembered; a table of hourly pushes has 9,000 switches a year."""
_READERS = 8
_T = TypeVar("_T")

_lock = threading.Lock()
_known: WeakKeyDictionary[ObjectStore, dict[ObjectInfo, Any]] = WeakKeyDictionary()


def read_once(
    store: ObjectStore, infos: Sequence[ObjectInfo], read: Callable[[ObjectStore, str], _T]
) -> list[_T]:
    """Return what is in the objects of a listing, in its order.

    Args:
        read: Reads one, and is called for those that have not been read; several at a time, where
            they are many.

    Raises:
        Exception: What ``read`` raises; nothing of that is remembered.
    """
    with _lock:
        there = _known.get(store, {})
        known = {info: there[info] for info in infos if info in there}
    left = [info for info in infos if info not in known]
    if len(left) > _READERS:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read-once") as pool:
            values = list(pool.map(lambda info: read(store, info.path), left))
    else:
        values = [read(store, info.path) for info in left]
    new = dict(zip(left, values, strict=True))
    if new:
        with _lock:
            there = _known.setdefault(store, {})
            if len(there) + len(new) > MOST_KNOWN:
                there.clear()
            there.update(new)
    return [new[info] if info in new else known[info] for info in infos]
