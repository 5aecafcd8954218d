"""Changes a push's record by the answer of a region, an abort or a rollback.

    abort       regions that have swapped stay; every other generation is discarded
    rollback    regions that have swapped go back, in the reverse order of the swaps; the rest is
                discarded

A region that *may* have swapped counts as swapped: its number is saved before the swap is
requested. An unreachable region does not delay the rollback of the others. A rollback supersedes an
abort: once a region may have swapped, the hooks that were due when the push was aborted are still
called, each once. An answer to something that was not asked at this stage, as from a slow
controller, changes nothing; but a swap that has happened is always recorded. Tried by
tests/pushes/test_rollout and test_rollout_model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from ingester.pushes.hooks import METHODS, Decision
from ingester.pushes.record import (
    Cause,
    Ending,
    HookStep,
    PushRecord,
    RegionRecord,
    new_round,
    with_event,
    with_region,
)
from ingester.pushes.states import PushStage, RegionStage, Status, rollback_order
from ingester.pushes.tasks import (
    ACTIONS,
    ActionDone,
    ActionFailed,
    ActionTask,
    ActionUnreachable,
    Created,
    RegionAction,
    RegionLook,
    Result,
    Rules,
)

_replace = msgspec.structs.replace

MAY_HAVE_SWAPPED = (Status.WAITING, Status.SERVING, Status.FAILED)


# ------------------------------------------------------------------------------------------ endings


def end(
    record: PushRecord,
    kind: Literal["abort", "rollback"],
    why: tuple[Cause, str],
    now: datetime,
) -> PushRecord:
    """Return the record of a push that starts to abort or roll back; ``why``: cause and reason."""
    if record.ending is not None and (record.ending.kind == "rollback" or kind == "abort"):
        return record
    cause, reason = why
    swapped = any(goes_back(region) for region in record.regions)
    record = _replace(
        with_event(record, None, f"{kind}: {reason}", now),
        ending=Ending(kind, reason, cause, now),
        stage=PushStage.REGIONS,
        step=None,
    )
    for region in record.regions:
        reopened = kind == "rollback" and goes_back(region)
        step = _unheard(region, now) if kind == "abort" and swapped else None
        stays = _replace(region, step=step, closed=region.closed and not reopened)
        record = with_region(record, stays)
    return record


def _unheard(region: RegionRecord, now: datetime) -> HookStep | None:
    """Return the step of a region whose hooks are due, and may still ask for a rollback."""
    step = region.step
    if step is None or Decision.ROLLBACK not in METHODS[step.method].answers:
        return None
    if step.next_at is None:
        return step
    return new_round(step) if now >= step.next_at else None


def goes_back(region: RegionRecord) -> bool:
    """Return whether a rollback has to ask this region."""
    return region.swap_number > 0 and region.status in MAY_HAVE_SWAPPED


def through(record: PushRecord, region: RegionRecord) -> bool:
    """Return whether nothing is left to do in a region."""
    if record.ending is None:
        return region.closed or region.stage is RegionStage.DONE
    if region.step is not None:
        return False
    if region.closed or region.status in (Status.ROLLED_BACK, Status.ABORTED):
        return True
    if record.ending.kind == "rollback":
        return region.status is Status.FAILED and not goes_back(region)
    return region.status in (Status.SERVING, Status.FAILED)


def tasks_of_ending(record: PushRecord) -> Iterator[ActionTask]:
    """Yield what an abort or rollback asks of regions now."""
    assert record.ending is not None
    back: list[tuple[int, str]] = []
    for region in record.regions:
        if region.step is not None or through(record, region):
            continue
        if record.ending.kind == "rollback" and goes_back(region):
            back.append((region.swap_number, region.name))
        else:
            yield ActionTask(RegionAction.DISCARD, region.name)
    for name in rollback_order(back):
        yield ActionTask(RegionAction.ROLL_BACK, name)
        if record.region(name).unreachable_since is None:
            break


def final_status(record: PushRecord) -> Status:
    """Return the status of a push with nothing left to do in any region."""
    found = [region.status for region in record.regions]
    if record.ending is None:
        return Status.SERVING if set(found) == {Status.SERVING} else Status.FAILED
    if record.ending.kind == "rollback":
        if any(goes_back(region) for region in record.regions):
            return Status.FAILED
        if Status.ROLLED_BACK in found:
            return Status.ROLLED_BACK
    return Status.FAILED if record.ending.cause is Cause.FAILURE else Status.ABORTED


# ------------------------------------------------------------------------------ answers of regions


def region_answered(
    record: PushRecord, task: ActionTask, result: Result, rules: Rules, now: datetime
) -> PushRecord:
    """Return the record with a region's answer."""
    if task.action is RegionAction.REGISTER_SCHEMA:
        return _schema_answered(record, result, rules, now)
    region = record.region(task.region)
    if not _was_asked(record, region, task.action):
        return record
    if isinstance(result, ActionUnreachable):
        return _unreachable(record, region, result.reason, rules, now)
    if isinstance(result, ActionFailed):
        asked = "" if task.action is RegionAction.LOOK else f"{task.action.value}: "
        said = f"{asked}{result.reason}"
        if task.action is RegionAction.ROLL_BACK:
            said = f"{_still_live(region)}: {said}; roll the push back again once that is fixed"
        record = fail(record, region, said, now)
        why = (Cause.FAILURE, f"region {region.name}: {asked}{result.reason}")
        return record if record.ending else end(record, rules.on_failure, why, now)
    reached = region
    if region.unreachable_since is not None:
        reached = _replace(region, unreachable_since=None, reason="")
        record = with_event(record, region.name, "reached again", now)
    if task.action is RegionAction.CHECK_FOLLOWERS:
        return _followers(record, reached, result, rules, now)
    return _DONE[task.action](record, reached, result, now)


def fail(record: PushRecord, region: RegionRecord, reason: str, now: datetime) -> PushRecord:
    """Return the record with a failed region, in which nothing more is done."""
    record = with_event(record, region.name, f"FAILED: {reason}", now)
    failed = _replace(
        region,
        status=Status.FAILED,
        since=region.since if region.status is Status.FAILED else now,
        closed=True,
        reason=reason,
        step=None,
        # A later rollback waits for it as long as the first request did.
        unreachable_since=None,
    )
    return with_region(record, failed)


def to_status(
    record: PushRecord, region: RegionRecord, status: Status, now: datetime, reason: str = ""
) -> PushRecord:
    """Return the record with a region's new status."""
    if region.status is status:
        return with_region(record, region)
    what = f"{status.value}: {reason}" if reason else status.value
    changed = _replace(region, status=status, since=now, reason=reason)
    return with_region(with_event(record, region.name, what, now), changed)


def _was_asked(record: PushRecord, region: RegionRecord, action: RegionAction) -> bool:
    if action is RegionAction.SWAP and region.swap_number and region.status is Status.WAITING:
        return True
    if through(record, region):
        return False
    if action is RegionAction.LOOK:
        return region.step is not None
    if action in (RegionAction.ROLL_BACK, RegionAction.DISCARD):
        return record.ending is not None
    return ACTIONS.get(region.stage) is action


def _schema_answered(record: PushRecord, result: Result, rules: Rules, now: datetime) -> PushRecord:
    if record.stage is not PushStage.SCHEMA:
        return record
    if isinstance(result, ActionDone):
        return _replace(record, stage=PushStage.POST_SCHEMA, unreachable_since=None)
    if isinstance(result, ActionFailed):
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
        record = with_event(record, region.name, f"unreachable: {reason}", now)
        region = _replace(region, unreachable_since=since, reason=reason)
        record = with_region(record, region)
    if rules.on_unreachable == "wait" or now < since + rules.unreachable_after:
        return record
    why = f"unreachable since {since.isoformat()}: {reason}"
    if record.ending is not None or rules.on_unreachable == "skip":
        if goes_back(region):
            why = f"{_still_live(region)}: {why}; roll the push back once the region is reachable"
        return fail(record, region, why, now)
    return end(record, rules.on_unreachable, (Cause.FAILURE, f"region {region.name} is {why}"), now)


def _still_live(region: RegionRecord) -> str:
    live = "is still live" if region.status is Status.SERVING else "may be live"
    return f"generation {region.table_version} {live}"


def _followers(
    record: PushRecord, region: RegionRecord, result: ActionDone, rules: Rules, now: datetime
) -> PushRecord:
    assert isinstance(result.value, tuple)
    lagging: tuple[str, ...] = result.value
    since = region.followers_since or now
    region = _replace(region, lagging=lagging, followers_since=since)
    record = with_region(record, region)
    late = now >= since + rules.followers_deadline
    if not lagging or (late and rules.on_followers == "proceed"):
        return with_region(record, _replace(region, stage=region.stage.next))
    if not late or rules.on_followers == "wait" or rules.on_followers == "proceed":
        return record
    names = ", ".join(lagging)
    why = f"region {region.name}: followers have not confirmed since {since.isoformat()}: {names}"
    return end(record, rules.on_followers, (Cause.FAILURE, why), now)


def _created(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    assert isinstance(result.value, Created)
    version, previous = result.value
    made = _replace(region, table_version=version, previous=previous, stage=region.stage.next)
    return to_status(record, made, Status.WRITING, now, f"generation {version}")


def _looked(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    assert isinstance(result.value, RegionLook)
    if region.stage is RegionStage.PRE_SWAP:
        region = _replace(region, previous=result.value.previous)
    return with_region(record, region)


def _started_followers(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    return with_region(record, _replace(region, stage=region.stage.next))


def _written(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    if not result.value:
        return with_region(record, region)
    complete = _replace(region, stage=region.stage.next)
    return to_status(record, complete, Status.COMPLETED, now)


def _swapped(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    assert result.value is None or isinstance(result.value, int)
    live = _replace(region, previous=result.value, stage=region.stage.next)
    return to_status(record, live, Status.SERVING, now)


def _rolled_back(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    closed = _replace(region, closed=True, swap_number=0)
    if result.value or region.status is Status.SERVING:
        reason = "" if result.value else "its generation was no longer current"
        return to_status(record, closed, Status.ROLLED_BACK, now, reason)
    if region.status is Status.FAILED:
        return with_region(record, closed)
    return to_status(record, closed, Status.ABORTED, now)


def _discarded(
    record: PushRecord, region: RegionRecord, result: ActionDone, now: datetime
) -> PushRecord:
    closed = _replace(region, closed=True)
    if result.value:
        return to_status(record, closed, Status.ABORTED, now)
    if goes_back(region):
        return to_status(record, closed, Status.SERVING, now)
    return fail(record, region, "its generation is current, but not by this push", now)


_DONE: Mapping[
    RegionAction, Callable[[PushRecord, RegionRecord, ActionDone, datetime], PushRecord]
] = {
    RegionAction.CREATE: _created,
    RegionAction.START_FOLLOWERS: _started_followers,
    RegionAction.CHECK_WRITTEN: _written,
    RegionAction.SWAP: _swapped,
    RegionAction.ROLL_BACK: _rolled_back,
    RegionAction.DISCARD: _discarded,
    RegionAction.LOOK: _looked,
}
