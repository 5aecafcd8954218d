"""The question asked of a store before anything is entrusted to it.

Some servers take the header of a conditional create and ignore it. Then two writers could both
own one manifest version, and rows would be lost in silence. So a start writes one object, tries to
create it again with other content, and wants to be refused with the first content in place.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from persist.store.contract import ObjectStore
from persist.store.errors import AlreadyExists, NotFound, StoreError, StoreUnsuitable

FOLDER = "_ingesters/_probe"


def check_store(store: ObjectStore) -> None:
    """Return when the store can do an atomic put and a conditional create.

    What it writes is below ``_ingesters/_probe/`` and removed again, also when it fails.

    Raises:
        StoreUnsuitable: naming the store and what it failed.
        StoreUnavailable: the store could not be asked; try again later.
        StoreDenied: it may not be asked with these credentials.
    """
    path = f"{FOLDER}/{uuid.uuid4().hex}"
    try:
        _check_put(store, f"{path}.put")
        _check_create(store, f"{path}.create")
    finally:
        with suppress(StoreError):  # what the checks found counts, not that cleaning up failed too
            store.delete(f"{path}.put")
            store.delete(f"{path}.create")


def _check_put(store: ObjectStore, path: str) -> None:
    for content in (b"first", b"second"):
        store.put(path, content)
        if _content(store, path) != content:
            raise StoreUnsuitable(f"{store.url}: what was put is not what is read back")
    listed = [found.path for found in store.list(f"{FOLDER}/")]
    if path not in listed:
        raise StoreUnsuitable(f"{store.url}: a listing lacks an object that was just put")


def _check_create(store: ObjectStore, path: str) -> None:
    store.create(path, b"first")
    try:
        store.create(path, b"second")
    except AlreadyExists:
        if _content(store, path) != b"first":
            raise StoreUnsuitable(
                f"{store.url}: refuses a conditional create of a name that is taken, "
                "but overwrites the object"
            ) from None
    else:
        raise StoreUnsuitable(
            f"{store.url}: ignores the condition of a conditional create (If-None-Match: *), "
            "so that two writers could both own one version of a table; use another store"
        )


def _content(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except NotFound:
        return None
