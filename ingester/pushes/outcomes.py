"""What an answer of a region makes of the push.

Law of this file: pure. An answer to something that was not asked at this stage, as of a controller
that was slow, changes nothing; but a swap that has happened is always written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from ingester.pushes.ending import end, goes_back, through
from ingester.pushes.record import (
    Cause,
    PushRecord,
    RegionRecord,
    noted,
    with_region,
)
from ingester.pushes.regions import Created
from ingester.pushes.stages import PushStage, after_region
from ingester.pushes.status import Status
from ingester.pushes.tasks import (
    ACTIONS,
    Action,
    ActionTask,
    Done,
    Failed,
    Result,
    Rules,
    Unreachable,
)

_replace = msgspec.structs.replace


def region_answered(
    record: PushRecord, task: ActionTask, result: Result, rules: Rules, now: datetime
) -> PushRecord:
    """Return the record with a region's answer taken in."""
    if task.action is Action.REGISTER_SCHEMA:
        return _schema_answered(record, result, rules, now)
    region = record.region(task.region)
    if not _asked(record, region, task.action):
        return record
    if isinstance(result, Unreachable):
        return _unreachable(record, region, result.reason, rules, now)
    if isinstance(result, Failed):
        said = f"{task.action.value}: {result.reason}"
        if task.action is Action.ROLL_BACK:
            said = f"{_stays(region)}: {said}; roll the push back again once that is mended"
        record = fail(record, region, said, now)
        why = (Cause.FAILURE, f"region {region.name}: {task.action.value}: {result.reason}")
        return record if record.ending else end(record, rules.on_failure, why, now)
    reached = region
    if region.unreachable_since is not None:
        reached = _replace(region, unreachable_since=None, reason="")
        record = noted(record, region.name, "reached again", now)
    if task.action is Action.CHECK_FOLLOWERS:
        return _followers(record, reached, result, rules, now)
    return _DONE[task.action](record, reached, result, now)


def fail(record: PushRecord, region: RegionRecord, reason: str, now: datetime) -> PushRecord:
    """Return the record with a region that has failed, and about which nothing more is done."""
    record = noted(record, region.name, f"FAILED: {reason}", now)
    since = region.since if region.status is Status.FAILED else now
    failed = _replace(
        region,
        status=Status.FAILED,
        since=since,
        closed=True,
        reason=reason,
        step=None,
        # Whoever asks it again, for a way back, waits for it as long as the first time.
        unreachable_since=None,
    )
    return with_region(record, failed)


def to_status(
    record: PushRecord, region: RegionRecord, status: Status, now: datetime, reason: str = ""
) -> PushRecord:
    """Return the record with a region that has a new status."""
    if region.status is status:
        return with_region(record, region)
    what = f"{status.value}: {reason}" if reason else status.value
    changed = _replace(region, status=status, since=now, reason=reason)
    return with_region(noted(record, region.name, what, now), changed)


def _asked(record: PushRecord, region: RegionRecord, action: Action) -> bool:
    if action is Action.SWAP and region.swap_number and region.status is Status.WAITING:
        return True
    if through(record, region):
        return False
    if action is Action.COMPARE:
        return region.step is not None
    if action in (Action.ROLL_BACK, Action.DISCARD):
        return record.ending is not None
    return ACTIONS.get(region.stage) is action


def _schema_answered(record: PushRecord, result: Result, rules: Rules, now: datetime) -> PushRecord:
    if record.stage is not PushStage.SCHEMA:
        return record
    if isinstance(result, Done):
        return _replace(record, stage=PushStage.POST_SCHEMA, unreachable_since=None)
    if isinstance(result, Failed):
        return end(record, "abort", (Cause.FAILURE, f"schema: {result.reason}"), now)
    since = record.unreachable_since or now
    if rules.on_unreachable == "wait" or now < since + rules.unreachable_after:
        return _replace(record, unreachable_since=since)
    why = f"schema: unreachable since {since.isoformat()}: {result.reason}"
    return end(record, "abort", (Cause.FAILURE, why), now)


def _unreachable(
    record: PushRecord, region: RegionRecord, reason: str, rules: Rules, now: datetime
) -> PushRecord:
    since = region.unreachable_since or now
    if region.unreachable_since is None:
        record = noted(record, region.name, f"unreachable: {reason}", now)
        region = _replace(region, unreachable_since=since, reason=reason)
        record = with_region(record, region)
    if rules.on_unreachable == "wait" or now < since + rules.unreachable_after:
        return record
    why = f"unreachable since {since.isoformat()}: {reason}"
    if record.ending is not None or rules.on_unreachable == "skip":
        if goes_back(region):
            why = f"{_stays(region)}: {why}; a rollback, asked for when it is there, takes it back"
        return fail(record, region, why, now)
    return end(record, rules.on_unreachable, (Cause.FAILURE, f"region {region.name} is {why}"), now)


def _stays(region: RegionRecord) -> str:
    """Say what is left live in a region that does not go back."""
    live = "is still live" if region.status is Status.SERVING else "may be live"
    return f"version {region.table_version} {live}"


def _followers(
    record: PushRecord, region: RegionRecord, result: Done, rules: Rules, now: datetime
) -> PushRecord:
    assert isinstance(result.value, tuple)
    lagging: tuple[str, ...] = result.value
    since = region.followers_since or now
    region = _replace(region, lagging=lagging, followers_since=since)
    record = with_region(record, region)
    late = now >= since + rules.followers_deadline
    if not lagging or (late and rules.on_followers == "proceed"):
        return with_region(record, _replace(region, stage=after_region(region.stage)))
    if not late or rules.on_followers == "wait" or rules.on_followers == "proceed":
        return record
    names = ", ".join(lagging)
    why = f"region {region.name}: followers have not confirmed since {since.isoformat()}: {names}"
    return end(record, rules.on_followers, (Cause.FAILURE, why), now)


def _created(record: PushRecord, region: RegionRecord, result: Done, now: datetime) -> PushRecord:
    assert isinstance(result.value, Created)
    version, previous = result.value
    made = _replace(
        region, table_version=version, previous=previous, stage=after_region(region.stage)
    )
    return to_status(record, made, Status.WRITING, now, f"version {version}")


def _compared(record: PushRecord, region: RegionRecord, result: Done, now: datetime) -> PushRecord:
    return with_region(record, region)


def _started_followers(
    record: PushRecord, region: RegionRecord, result: Done, now: datetime
) -> PushRecord:
    return with_region(record, _replace(region, stage=after_region(region.stage)))


def _written(record: PushRecord, region: RegionRecord, result: Done, now: datetime) -> PushRecord:
    if not result.value:
        return with_region(record, region)
    there = _replace(region, stage=after_region(region.stage))
    return to_status(record, there, Status.COMPLETED, now)


def _swapped(record: PushRecord, region: RegionRecord, result: Done, now: datetime) -> PushRecord:
    assert result.value is None or isinstance(result.value, int)
    live = _replace(region, previous=result.value, stage=after_region(region.stage))
    return to_status(record, live, Status.SERVING, now)


def _rolled_back(
    record: PushRecord, region: RegionRecord, result: Done, now: datetime
) -> PushRecord:
    closed = _replace(region, closed=True, swap_number=0)
    if result.value or region.status is Status.SERVING:
        reason = "" if result.value else "its version was no longer the current one"
        return to_status(record, closed, Status.ROLLED_BACK, now, reason)
    if region.status is Status.FAILED:
        return with_region(record, closed)
    return to_status(record, closed, Status.ABORTED, now)


def _discarded(record: PushRecord, region: RegionRecord, result: Done, now: datetime) -> PushRecord:
    closed = _replace(region, closed=True)
    if result.value:
        return to_status(record, closed, Status.ABORTED, now)
    if goes_back(region):
        return to_status(record, closed, Status.SERVING, now)
    return fail(record, region, "its version is current, but not by this push", now)


_DONE: Mapping[Action, Callable[[PushRecord, RegionRecord, Done, datetime], PushRecord]] = {
    Action.CREATE: _created,
    Action.START_FOLLOWERS: _started_followers,
    Action.CHECK_WRITTEN: _written,
    Action.SWAP: _swapped,
    Action.ROLL_BACK: _rolled_back,
    Action.DISCARD: _discarded,
    Action.COMPARE: _compared,
}
