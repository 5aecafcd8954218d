"""What pushes that have ended have left behind in regions that failed, or stayed away.

    ended, a region FAILED ─▶ it gives the push's version up ─▶ _pushes/<push id>/left/<region>
                              as soon as it can be reached

Law of this file: nobody leads such a push any more, and its version would keep its files for ever.
Only what does not count is given up, as by an abort; a region that answers is asked once, and that
is kept beside the push. One that is away is asked another time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from ingester.pushes.leading import Leadership, needs_leading
from ingester.pushes.push_folders import LEFT, PushFolder
from ingester.pushes.push_store import FOLDER, Saved
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.status import Status

log = structlog.get_logger()


class Leftover(NamedTuple):
    """A region that may have a version of a push that has ended, and will not count."""

    record: PushRecord
    region: str


def leftovers(folders: Sequence[PushFolder], heads: Mapping[str, Saved]) -> list[Leftover]:
    """Return what is to be cleaned up, by a listing of pushes and their newest records."""
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
    """Have each region that can be reached give up what it has.

    Raises:
        StoreError: the store of the pushes is away; the rest is done another time.
    """
    regions = place.regions()
    for record, name in found:
        region = regions.get(name)
        if region is None:
            continue  # it is not configured here
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
