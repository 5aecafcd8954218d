"""What is deleted of pushes that have ended, and when.

    an hour after the end     all records but the last two
    ``retain`` after it       the whole push

Law of this file: a push that is not over is left alone. Records go in ascending order, so that one
whose predecessor is gone is the rest of a push that was being deleted, or was created by a
controller that had been paused for all that time: neither counts (`ingester.pushes.push_store`).
Times are those of the store. A push that is deleted is forgotten: its id may begin another one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from ingester.pushes.leading import needs_leading
from ingester.pushes.push_folders import PushFolder
from ingester.pushes.push_store import FOLDER, PushDamaged, PushNotFound, PushStore, Saved
from persist.store import ObjectStore

KEPT_RECORDS = 2
OLD_RECORDS_AFTER = timedelta(hours=1)


class Pruned(NamedTuple):
    """What was deleted: records of pushes that stay, and whole pushes by their ids."""

    records: int
    pushes: list[str]
    more: bool = False
    """Whether there was no time for some."""


def prune(
    store: ObjectStore,
    folders: Iterable[PushFolder],
    retain: timedelta,
    now: datetime,
    forget: Callable[[str], None] | None = None,
    for_s: float = math.inf,
) -> Pruned:
    """Delete what is old of the pushes that have ended.

    Args:
        now: is the store's.
        forget: is called before a whole push is deleted, with its id.
        for_s: after so long nothing more is begun; the first one is, always.

    Raises:
        StoreError: the rest is deleted another time.
    """
    pushes = PushStore(store)
    records, gone = 0, list[str]()
    until = time.monotonic() + for_s
    for folder in folders:
        if (records or gone) and time.monotonic() >= until:
            return Pruned(records, gone, more=True)
        age = now - folder.record_at if folder.record_at is not None else None
        if age is not None and age < OLD_RECORDS_AFTER:
            continue
        try:
            saved = _newest(pushes, folder.push_id)
        except PushDamaged:
            continue  # an operator has to look at it
        if saved is not None and (age is None or needs_leading(saved, folder.requests)):
            continue
        if saved is None or (age is not None and age >= retain):
            if forget is not None:
                forget(folder.push_id)
            # Nothing but what was listed: the id may have begun another push meanwhile.
            for path in folder.paths:
                store.delete(path)
            gone.append(folder.push_id)
            continue
        for number in folder.numbers[:-KEPT_RECORDS]:
            store.delete(f"{FOLDER}/{folder.push_id}/{number:020d}")
            records += 1
    return Pruned(records, gone)


def _newest(pushes: PushStore, push_id: str) -> Saved | None:
    """Return the record that counts; None for the rest of a push that was being deleted."""
    with suppress(PushNotFound):
        return pushes.newest(push_id)
    return None
