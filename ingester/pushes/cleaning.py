"""Clean-up after pushes that have ended: their old records, and leftovers in failed regions.

    an hour after the end     all records but the last two are deleted
    ``retain`` after it       the whole push is deleted
    a region is FAILED        it discards the push's generation as soon as it is reachable
                              ─▶ _pushes/<push id>/left/<region>

A push that is not over is left alone. Records are deleted in ascending order, so that a record
without its predecessor is part of a push being deleted, or was created by a controller that was
paused for all that time: neither is valid (`ingester.pushes.store`). Times are the store's. The id
of a deleted push may be used again. Tried by tests/pushes/test_pruning and test_leftovers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from ingester.pushes.leading import Leadership, needs_leading
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status
from ingester.pushes.store import (
    FOLDER,
    LEFT,
    PushDamaged,
    PushFolder,
    PushNotFound,
    PushStore,
    SavedRecord,
)
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from persist.store import ObjectStore

log = structlog.get_logger()

KEPT_RECORDS = 2
OLD_RECORDS_AFTER = timedelta(hours=1)


class Pruned(NamedTuple):
    """The deleted objects: the number of old records, and the ids of whole pushes."""

    records: int
    pushes: list[str]
    more: bool = False
    """Whether the time was too short for some."""


def prune(
    store: ObjectStore,
    folders: Iterable[PushFolder],
    retain: timedelta,
    now: datetime,
    forget: Callable[[str], None] | None = None,
    for_s: float = math.inf,
) -> Pruned:
    """Delete old records and pushes.

    Args:
        now: the store's time.
        forget: called with the id of each push before it is deleted.
        for_s: no further push is started after this time; at least one is processed.

    Raises:
        StoreError: the rest is deleted at the next call.
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
            # Only listed objects: the id may have been used for another push since.
            for path in folder.paths:
                store.delete(path)
            gone.append(folder.push_id)
            continue
        for number in folder.numbers[:-KEPT_RECORDS]:
            store.delete(f"{FOLDER}/{folder.push_id}/{number:020d}")
            records += 1
    return Pruned(records, gone)


def _newest(pushes: PushStore, push_id: str) -> SavedRecord | None:
    with suppress(PushNotFound):
        return pushes.newest(push_id)
    return None


class Leftover(NamedTuple):
    """A failed region that may still have the generation of a push that has ended."""

    record: PushRecord
    region: str


def leftovers(folders: Sequence[PushFolder], heads: Mapping[str, SavedRecord]) -> list[Leftover]:
    """Return the leftovers of the listed pushes; ``heads`` are their newest records."""
    found = []
    for folder in folders:
        saved = heads.get(folder.push_id)
        if saved is None or needs_leading(saved, folder.requests):
            continue
        for region in saved.record.regions:
            if region.status is Status.FAILED and region.name not in folder.left:
                found.append(Leftover(saved.record, region.name))
    return found


def clean_up(place: Leadership, found: Sequence[Leftover]) -> None:
    """Let each reachable region discard its leftover, once.

    Raises:
        StoreError: the store of the pushes is unreachable; the rest is retried later.
    """
    regions = place.regions()
    for record, name in found:
        region = regions.get(name)
        if region is None:
            continue  # not configured here
        try:
            given_up = region.discard(record)
        except (RegionUnreachable, RegionFailed) as exc:
            log.info("leftover stays", push=record.push_id, region=name, why=str(exc))
            continue
        place.store.put(f"{FOLDER}/{record.push_id}/{LEFT}/{name}", b"")
        log.info(
            "leftover given up" if given_up else "leftover counts",
            push=record.push_id,
            table=f"{record.namespace}/{record.table}",
            region=name,
        )
