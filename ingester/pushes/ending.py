"""How a push ends: by itself, given up (abort), or undone (rollback).

    abort       what has swapped stays; every other version is discarded
    rollback    what has swapped goes back, in the reverse order of the swaps; the rest is discarded

What *may* have swapped counts as swapped: its number was kept before the swap was asked for. A
region that cannot be reached does not hold up the others' way back. A rollback wins over an abort.
Law of this file: pure, and a region is closed once nothing more is to be done about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from ingester.pushes.orders import way_back
from ingester.pushes.record import (
    Cause,
    Ending,
    PushRecord,
    RegionRecord,
    noted,
    with_region,
)
from ingester.pushes.stages import PushStage, RegionStage
from ingester.pushes.status import Status
from ingester.pushes.tasks import Action, ActionTask

_replace = msgspec.structs.replace

MAY_HAVE_SWAPPED = (Status.WAITING, Status.SERVING, Status.FAILED)


def end(
    record: PushRecord,
    kind: Literal["abort", "rollback"],
    why: tuple[Cause, str],
    now: datetime,
) -> PushRecord:
    """Return the record of a push that is to be given up or undone; ``why`` is cause and reason."""
    if record.ending is not None and (record.ending.kind == "rollback" or kind == "abort"):
        return record
    cause, reason = why
    record = _replace(
        noted(record, None, f"{kind}: {reason}", now),
        ending=Ending(kind, reason, cause, now),
        stage=PushStage.REGIONS,
        step=None,
    )
    for region in record.regions:
        open_again = kind == "rollback" and goes_back(region)
        stays = _replace(region, step=None, closed=region.closed and not open_again)
        record = with_region(record, stays)
    return record


def goes_back(region: RegionRecord) -> bool:
    """Return whether a rollback has to ask this region to go back."""
    return region.swap_number > 0 and region.status in MAY_HAVE_SWAPPED


def through(record: PushRecord, region: RegionRecord) -> bool:
    """Return whether nothing more is to be done about a region."""
    if record.ending is None:
        return region.closed or region.stage is RegionStage.DONE
    if region.closed or region.status in (Status.ROLLED_BACK, Status.ABORTED):
        return True
    if record.ending.kind == "rollback":
        return region.status is Status.FAILED and not goes_back(region)
    return region.status in (Status.SERVING, Status.FAILED)


def tasks_of_ending(record: PushRecord) -> Iterator[ActionTask]:
    """Yield what is asked of regions to end the push."""
    assert record.ending is not None
    back: list[tuple[int, str]] = []
    for region in record.regions:
        if through(record, region):
            continue
        if record.ending.kind == "rollback" and goes_back(region):
            back.append((region.swap_number, region.name))
        else:
            yield ActionTask(Action.DISCARD, region.name)
    for name in way_back(back):
        yield ActionTask(Action.ROLL_BACK, name)
        if record.region(name).unreachable_since is None:
            break


def final_status(record: PushRecord) -> Status:
    """Return the status that a push has once all of its regions are through."""
    there = [region.status for region in record.regions]
    if record.ending is None:
        return Status.SERVING if set(there) == {Status.SERVING} else Status.FAILED
    if record.ending.kind == "rollback":
        stuck = any(goes_back(region) for region in record.regions)
        if stuck:
            return Status.FAILED
        if Status.ROLLED_BACK in there:
            return Status.ROLLED_BACK
    return Status.FAILED if record.ending.cause is Cause.FAILURE else Status.ABORTED
