"""A push, step by step: what is due, and what each answer makes of the record.

    due(record, rules) ─▶ hooks to call, things to ask of regions, each with its time
    begun(record, task) ─▶ the record to be kept before the task is done
    hook_said, region_answered, requested ─▶ the next record
    advanced(record, rules, now) ─▶ through every stage that needs nobody's answer

Law of this file: pure. A record is all that there is: a controller that was killed anywhere
between two records goes on from the last one that was kept, by doing again what was due. So a hook
is called at least once, and a region asked at least once. Regions go on independently; they share
their order (`ingester.pushes.orders`) and their end (`ingester.pushes.ending`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from ingester.pushes.answers import Answer, Decision
from ingester.pushes.asking import HookStep, conclude, heard, new_round, next_hook
from ingester.pushes.contexts import Comparison, HookContext
from ingester.pushes.ending import end, final_status, goes_back, tasks_of_ending, through
from ingester.pushes.orders import is_next
from ingester.pushes.outcomes import to_status
from ingester.pushes.record import (
    Cause,
    PushRecord,
    RegionRecord,
    noted,
    push_view,
    region_views,
    with_region,
    with_status,
)
from ingester.pushes.stages import (
    PUSH_HOOKS,
    REGION_HOOKS,
    PushStage,
    RegionStage,
    after_push,
    after_region,
)
from ingester.pushes.status import PUSH_STEPS, Status, status_of_regions
from ingester.pushes.tasks import ACTIONS, Action, ActionTask, Due, HookTask, Rules

_replace = msgspec.structs.replace


class RequestRefused(Exception):
    """A push cannot be given up, or undone, any more; the message says why."""


def due(record: PushRecord, rules: Rules) -> Iterator[Due]:
    """Yield what is to be done, at most one thing for each region and one for the push."""
    if record.step is not None:
        yield from _due_hook(record.step, None, record.since, rules)
    elif record.stage is PushStage.SCHEMA:
        task = ActionTask(Action.REGISTER_SCHEMA, record.order.regions[0])
        yield Due(record.since, task)
    if record.stage is not PushStage.REGIONS:
        return
    if record.ending is not None:
        for task in tasks_of_ending(record):
            yield Due(record.ending.at, task)
        return
    for region in record.regions:
        if through(record, region):
            continue
        if region.step is not None:
            yield from _due_hook(region.step, region.name, region.since, rules)
        elif region.stage in ACTIONS:
            yield Due(region.since, ActionTask(ACTIONS[region.stage], region.name))


def _due_hook(step: HookStep, region: str | None, since: datetime, rules: Rules) -> Iterator[Due]:
    asked = step if step.next_at is None else new_round(step)
    hook = next_hook(asked, rules.hooks)
    if hook is not None:  # else nobody is configured any more, and `advanced` ends the step
        yield Due(
            step.next_at or since, HookTask(step.method, region, hook, asked.round, step.began_at)
        )


def begun(record: PushRecord, task: ActionTask) -> PushRecord:
    """Return the record that is to be kept before a region is asked.

    A swap gets its number here: what may have happened is written down before it can.
    """
    region = record.region(task.region)
    if task.action is not Action.SWAP or region.swap_number:
        return record
    number = record.swaps + 1
    numbered = with_region(record, _replace(region, swap_number=number))
    return _replace(numbered, swaps=number)


def context_of(
    record: PushRecord,
    task: HookTask,
    rules: Rules,
    now: datetime,
    statistics: Comparison | None = None,
) -> HookContext:
    """Return what a hook is called with."""
    step = _step_of(record, task)
    assert step is not None
    said = step.of(task.hook)
    ends = record.stage is PushStage.PRE_END
    return HookContext(
        method=task.method,
        push=push_view(record, final_status(record) if ends else None),
        regions=region_views(record.regions),
        region=task.region,
        call=1 if said is None else said.calls + 1,
        first_called_at=now if said is None else said.first_at,
        now=now,
        deadline=step.began_at + rules.patience.deadline,
        statistics=statistics,
    )


def _step_of(record: PushRecord, task: HookTask) -> HookStep | None:
    holder = record if task.region is None else record.region(task.region)
    step = holder.step
    if step is None or (step.method, step.began_at) != (task.method, task.step_at):
        return None
    return step


def hook_said(
    record: PushRecord, task: HookTask, answer: Answer, rules: Rules, now: datetime
) -> PushRecord:
    """Return the record with a hook's answer taken in, if anybody still waits for it."""
    step = _step_of(record, task)
    if step is None:
        return record
    if step.next_at is not None:
        step = new_round(step)
    if step.round != task.round or next_hook(step, rules.hooks) != task.hook:
        return record
    step, outcome = heard(step, rules.hooks, (task.hook, answer), rules.patience, now)
    if answer.decision is not Decision.PROCEED:
        what = f"{task.method}: {task.hook}: {answer.decision.value} {answer.reason}".strip()
        if _news(_step_of(record, task), task.hook, answer):
            record = noted(record, task.region, what, now)
    return advanced(_with_step(record, task.region, step, outcome, now), rules, now)


def _news(before: HookStep | None, hook: str, answer: Answer) -> bool:
    said = before.of(hook) if before is not None else None
    return said is None or (said.decision, said.reason) != (answer.decision, answer.reason)


def _with_step(
    record: PushRecord, region: str | None, step: HookStep, outcome: Answer | None, now: datetime
) -> PushRecord:
    """Take in a step of hooks as it stands, and what has come of it."""
    if outcome is None:
        if region is None:
            return _replace(record, step=step)
        return with_region(record, _replace(record.region(region), step=step))
    at_end = record.stage is PushStage.PRE_END
    if at_end:
        record = _replace(record, end_asked=True, stage=PushStage.REGIONS, step=None)
    if outcome.decision is not Decision.PROCEED:
        kind: Literal["abort", "rollback"] = (
            "rollback" if outcome.decision is Decision.ROLLBACK else "abort"
        )
        if record.stage is PushStage.POST_END:
            return _replace(record, stage=PushStage.OVER, step=None, ended_at=now)
        return end(record, kind, (Cause.HOOK, f"{step.method}: {outcome.reason}"), now)
    if region is not None:
        before = record.region(region)
        return with_region(record, _replace(before, step=None, stage=after_region(before.stage)))
    if at_end:
        return record
    stage = after_push(record.stage)
    ended_at = now if stage is PushStage.OVER else None
    return _replace(record, step=None, stage=stage, ended_at=ended_at)


def requested(
    record: PushRecord, kind: Literal["abort", "rollback"], reason: str, now: datetime
) -> PushRecord:
    """Return the record of a push that somebody wants to be given up or undone.

    Raises:
        RequestRefused: it has ended, and there is nothing (more) to undo.
    """
    why = (Cause.REQUEST, reason)
    if record.stage not in (PushStage.POST_END, PushStage.OVER):
        return end(record, kind, why, now)
    back = [region.name for region in record.regions if goes_back(region)]
    if kind == "abort" or not back:
        raise RequestRefused(
            f"push {record.push_id} has ended ({record.status.value})"
            + ("; roll it back instead" if back else ": there is nothing to undo")
        )
    again = _replace(record, ending=None, ended_at=None, end_asked=False)
    return end(again, kind, why, now)


def advanced(record: PushRecord, rules: Rules, now: datetime) -> PushRecord:
    """Return the record behind every stage that needs no answer of anybody's."""
    while True:
        before = record
        record = _advance_push(record, rules, now)
        if record.stage is PushStage.REGIONS and record.ending is None:
            for region in record.regions:
                if record.ending is None:
                    record = _advance_region(record, record.region(region.name), rules, now)
            record = _with_status_of_regions(record, now)
        if record == before:
            return record


def _advance_push(record: PushRecord, rules: Rules, now: datetime) -> PushRecord:
    if record.stage in PUSH_HOOKS:
        return _advance_step(record, None, PUSH_HOOKS[record.stage].name, rules, now)
    if record.stage is not PushStage.REGIONS:
        return record
    if not all(through(record, region) for region in record.regions):
        return record
    if not record.end_asked:
        return _replace(record, stage=PushStage.PRE_END)
    ended = with_status(record, final_status(record), now)
    return _replace(ended, stage=PushStage.POST_END)


def _advance_region(
    record: PushRecord, region: RegionRecord, rules: Rules, now: datetime
) -> PushRecord:
    if region.closed:
        return record
    if region.stage in REGION_HOOKS:
        return _advance_step(record, region.name, REGION_HOOKS[region.stage].name, rules, now)
    if region.stage is RegionStage.IN_LINE and is_next(
        record.order, region.name, lambda name: through(record, record.region(name))
    ):
        turn = _replace(region, stage=after_region(region.stage))
        return to_status(record, turn, Status.WAITING, now)
    return record


def _advance_step(
    record: PushRecord, region: str | None, method: str, rules: Rules, now: datetime
) -> PushRecord:
    """Open a stage's questions where they are not, and end them where nobody is left to call."""
    step = (record if region is None else record.region(region)).step
    if step is None:
        step = HookStep(method=method, began_at=now)
        record = _with_step(record, region, step, None, now)
    if step.next_at is not None:
        if now < step.next_at:
            return record
        step = new_round(step)
    if next_hook(step, rules.hooks) is not None:
        return record
    step, outcome = conclude(step, rules.hooks, rules.patience, now)
    return _with_step(record, region, step, outcome, now)


def _with_status_of_regions(record: PushRecord, now: datetime) -> PushRecord:
    if record.stage is not PushStage.REGIONS or record.ending is not None:
        return record
    status = status_of_regions(region.status for region in record.regions)
    # A region that is left behind may leave the others where the push was before.
    return with_status(record, status, now) if status in PUSH_STEPS[record.status] else record
