"""The state machine of a push: the steps that are due, and the effect of each answer.

    due(record, rules) ─▶ hooks to call, requests to regions, each with its time
    begun(record, task) ─▶ the record to save before the task starts
    hook_said, region_answered, requested ─▶ the next record
    advanced(record, rules, now) ─▶ past every stage that needs no answer

The record is the whole state: a controller that was killed between two records continues from the
last one that was saved, by doing again what was due. Hooks are therefore called at least once, and
regions asked at least once (tests/pushes/test_killed_anywhere). Regions proceed independently; they
share the order and the end of the push (:mod:`ingester.pushes.outcomes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from ingester.pushes.hooks import Answer, Comparison, Decision, HookContext
from ingester.pushes.outcomes import (
    end,
    final_status,
    goes_back,
    tasks_of_ending,
    through,
    to_status,
)
from ingester.pushes.record import (
    Cause,
    HookStep,
    PushRecord,
    RegionRecord,
    RequestKind,
    conclude,
    new_round,
    next_hook,
    push_view,
    region_views,
    with_answer,
    with_event,
    with_region,
    with_status,
)
from ingester.pushes.states import PUSH_STEPS, PushStage, RegionStage, Status, status_of_regions
from ingester.pushes.tasks import ACTIONS, ActionTask, Due, HookTask, RegionAction, Rules

_replace = msgspec.structs.replace

PUSH_HOOKS: Mapping[PushStage, str] = {
    PushStage.PARAMS: "validate_hook_params",
    PushStage.PRE_START: "pre_start_of_push_job",
    PushStage.POST_START: "post_start_of_push_job",
    PushStage.PRE_SCHEMA: "pre_schema_registration",
    PushStage.POST_SCHEMA: "post_schema_registration",
    PushStage.PRE_END: "pre_end_of_push_job",
    PushStage.POST_END: "post_end_of_push_job",
}
REGION_HOOKS: Mapping[RegionStage, str] = {
    RegionStage.PRE_CREATION: "pre_version_creation",
    RegionStage.POST_CREATION: "post_version_creation",
    RegionStage.PRE_INGESTION: "pre_start_of_version_ingestion_for_followers",
    RegionStage.POST_INGESTION: "post_start_of_version_ingestion_for_followers",
    RegionStage.POST_REPLICATION: "post_version_leader_replication",
    RegionStage.PRE_SWAP: "pre_version_swap",
    RegionStage.POST_SWAP: "post_version_swap",
}


class PushRequestRefused(Exception):
    """The push can no longer be aborted, rolled back or released; the message says why."""


def due(record: PushRecord, rules: Rules) -> Iterator[Due]:
    """Yield the tasks of a push, at most one for each region and one for the push."""
    if record.step is not None:
        yield from _due_hook(record.step, None, record.since, rules)
    elif record.stage is PushStage.SCHEMA:
        task = ActionTask(RegionAction.REGISTER_SCHEMA, record.order.regions[0])
        yield Due(record.since, task)
    if record.stage is not PushStage.REGIONS:
        return
    if record.ending is not None:
        for region in record.regions:
            if region.step is not None:
                yield from _due_hook(region.step, region.name, region.since, rules)
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
    if hook is not None:  # without any configured hook, `advanced` ends the step
        task = HookTask(step.method, region, hook, asked.round, step.began_at)
        amid = any(each.round == asked.round for each in asked.asked)
        yield Due(step.next_at or since, task, amid)


def begun(record: PushRecord, task: ActionTask) -> PushRecord:
    """Return the record to save before a region is asked.

    A swap gets its number here: it is recorded before it can happen.
    """
    region = record.region(task.region)
    if task.action is not RegionAction.SWAP or region.swap_number:
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
    """Return the argument of a hook's call."""
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
    """Return the record with a hook's answer; a late one is ignored, unless it is a rollback."""
    step = _step_of(record, task)
    if step is None:
        return _late_rollback(record, task, answer, now)
    if step.next_at is not None:
        step = new_round(step)
    if step.round != task.round or next_hook(step, rules.hooks) != task.hook:
        return record
    step, outcome = with_answer(step, rules.hooks, (task.hook, answer), rules.patience, now)
    if answer.decision is not Decision.PROCEED:
        what = f"{task.method}: {task.hook}: {answer.decision.value} {answer.reason}".strip()
        if _is_news(_step_of(record, task), task.hook, answer):
            record = with_event(record, task.region, what, now)
    return advanced(_with_step(record, task.region, step, outcome, now), rules, now)


def _late_rollback(record: PushRecord, task: HookTask, answer: Answer, now: datetime) -> PushRecord:
    """Return the record with the rollback of a hook that ran when the push was aborted."""
    ending = record.ending
    if answer.decision is not Decision.ROLLBACK or ending is None or ending.kind != "abort":
        return record
    if task.step_at > ending.at or record.stage in (PushStage.POST_END, PushStage.OVER):
        return record
    reason = f"{task.method}: {task.hook}: {answer.reason or 'rollback'}"
    record = with_event(record, task.region, f"{task.method}: {task.hook}: rollback", now)
    return end(record, "rollback", (Cause.HOOK, reason), now)


def _is_news(before: HookStep | None, hook: str, answer: Answer) -> bool:
    said = before.of(hook) if before is not None else None
    return said is None or (said.decision, said.reason) != (answer.decision, answer.reason)


def _with_step(
    record: PushRecord, region: str | None, step: HookStep, outcome: Answer | None, now: datetime
) -> PushRecord:
    """Return the record with a step of hooks, and the consequence of its outcome."""
    if record.ending is not None and region is not None:
        return _with_last_words(record, region, step, outcome, now)
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
        if region is not None:
            record = with_region(record, _replace(record.region(region), step=None))
        return end(record, kind, (Cause.HOOK, f"{step.method}: {outcome.reason}"), now)
    if region is not None:
        before = record.region(region)
        return with_region(record, _replace(before, step=None, stage=before.stage.next))
    if at_end:
        return record
    stage = record.stage.next
    ended_at = now if stage is PushStage.OVER else None
    return _replace(record, step=None, stage=stage, ended_at=ended_at)


def _with_last_words(
    record: PushRecord, region: str, step: HookStep, outcome: Answer | None, now: datetime
) -> PushRecord:
    """Return the record of an aborted push with a step that was due: only a rollback counts."""
    if outcome is None and step.next_at is None:
        return with_region(record, _replace(record.region(region), step=step))
    record = with_region(record, _replace(record.region(region), step=None))
    if outcome is None or outcome.decision is not Decision.ROLLBACK:
        return record
    return end(record, "rollback", (Cause.HOOK, f"{step.method}: {outcome.reason}"), now)


def requested(record: PushRecord, kind: RequestKind, reason: str, now: datetime) -> PushRecord:
    """Return the record of a push with a request to abort it, roll it back or release it.

    Raises:
        PushRequestRefused: it has ended, and there is nothing to undo.
    """
    if kind == "release":
        return _released(record, reason, now)
    why = (Cause.REQUEST, reason)
    if record.stage not in (PushStage.POST_END, PushStage.OVER):
        return end(record, kind, why, now)
    back = [region.name for region in record.regions if goes_back(region)]
    if kind == "abort" or not back:
        raise PushRequestRefused(
            f"push {record.push_id} has ended ({record.status.value})"
            + ("; roll it back instead" if back else ": there is nothing to undo")
        )
    again = _replace(record, ending=None, ended_at=None, end_asked=False)
    return end(again, kind, why, now)


def _released(record: PushRecord, reason: str, now: datetime) -> PushRecord:
    if record.over:
        raise PushRequestRefused(f"push {record.push_id} has ended ({record.status.value})")
    if record.ending is not None:
        why = f"{record.ending.kind}: {record.ending.reason}"
        raise PushRequestRefused(f"push {record.push_id} is being ended ({why})")
    if not record.deferred:
        raise PushRequestRefused(f"push {record.push_id} is not deferred")
    return _replace(with_event(record, None, f"released: {reason}", now), deferred=False)


def advanced(record: PushRecord, rules: Rules, now: datetime) -> PushRecord:
    """Return the record past every stage that needs no answer."""
    while True:
        before = record
        record = _advance_push(record, rules, now)
        if record.stage is PushStage.REGIONS and record.ending is None:
            for region in record.regions:
                if record.ending is None:
                    record = _advance_region(record, record.region(region.name), rules, now)
            record = _with_status_of_regions(record, now)
        if record.stage is PushStage.REGIONS and record.ending is not None:
            record = _without_hooks_removed(record, rules)
        if record == before:
            return record


def _without_hooks_removed(record: PushRecord, rules: Rules) -> PushRecord:
    """Return the record of an aborted push without steps whose hooks are no longer configured."""
    for region in record.regions:
        if region.step is not None and next_hook(region.step, rules.hooks) is None:
            record = with_region(record, _replace(region, step=None))
    return record


def _advance_push(record: PushRecord, rules: Rules, now: datetime) -> PushRecord:
    if record.stage in PUSH_HOOKS:
        return _advance_step(record, None, PUSH_HOOKS[record.stage], rules, now)
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
        return _advance_step(record, region.name, REGION_HOOKS[region.stage], rules, now)
    if (
        region.stage is RegionStage.IN_LINE
        and not record.deferred
        and record.order.is_next(region.name, lambda name: through(record, record.region(name)))
    ):
        turn = _replace(region, stage=region.stage.next)
        return to_status(record, turn, Status.WAITING, now)
    return record


def _advance_step(
    record: PushRecord, region: str | None, method: str, rules: Rules, now: datetime
) -> PushRecord:
    """Start the step of a stage of hooks, and end it when no hook is left to call."""
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
    # A skipped region may leave the others at an earlier status than the push's.
    return with_status(record, status, now) if status in PUSH_STEPS[record.status] else record
