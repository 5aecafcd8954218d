"""The store's mark: by which a data directory tells this store from every other.

    _store.json   {"format":1,"id":"…","at":"…"}    made once, by a conditional create, by whichever
                                                    daemon comes first; never changed

Law of this file: two daemons that come first at once have one mark in the end. A store without it
is new, of before marks, emptied, or a mount point with nothing mounted: the caller, who knows what
he has had there, tells which.
"""

from __future__ import annotations

import uuid

import msgspec

from persist.store.contract import ObjectStore
from persist.store.errors import AlreadyExists, NotFound, StoreUnsuitable

MARK = "_store.json"
FORMAT = 1


class StoreMark(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the mark. ``id`` is a UUID in 32 hexadecimal digits, ``at`` for people."""

    format: int
    id: str
    at: str = ""


def read_mark(store: ObjectStore) -> StoreMark | None:
    """The store's mark; None where there is none.

    Raises:
        StoreUnsuitable: What lies under its name is no mark, or one of a newer version.
        StoreUnavailable: Try again.
    """
    try:
        data = store.get(MARK)
    except NotFound:
        return None
    try:
        mark = msgspec.json.decode(data, type=StoreMark)
    except msgspec.DecodeError as exc:
        raise StoreUnsuitable(f"{store.url}/{MARK} is damaged: {exc}") from exc
    if mark.format != FORMAT:
        raise StoreUnsuitable(
            f"{store.url}/{MARK} has format {mark.format}, and this version knows {FORMAT}"
        )
    return mark


def ensure_mark(store: ObjectStore) -> StoreMark:
    """The store's mark, which is made where there is none.

    Raises:
        StoreUnsuitable: As for :func:`read_mark`.
        StoreUnavailable: Try again: it is made once all the same.
    """
    if (found := read_mark(store)) is not None:
        return found
    made = StoreMark(format=FORMAT, id=uuid.uuid4().hex, at=store.now().isoformat())
    try:
        store.create(MARK, msgspec.json.encode(made))
    except AlreadyExists:
        found = read_mark(store)
        if found is None:
            raise StoreUnsuitable(f"{store.url}/{MARK} comes and goes") from None
        return found
    return made
