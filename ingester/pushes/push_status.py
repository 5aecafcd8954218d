"""The status of a push, made of its record; the structs are in :mod:`ingester.reports.pushes`."""

from __future__ import annotations

from ingester.pushes.answers import Decision
from ingester.pushes.asking import HookStep
from ingester.pushes.record import Ending, PushRecord, RegionRecord
from ingester.reports.pushes import (
    EVENTS,
    EndingStatus,
    HookWait,
    KeptIn,
    Leader,
    PushEvent,
    PushStatus,
    RegionStatus,
    StepStatus,
)


def push_status(record: PushRecord, kept_in: KeptIn, leader: Leader) -> PushStatus:
    """Return what is told of a push."""
    return PushStatus(
        push_id=record.push_id,
        namespace=record.namespace,
        table=record.table,
        order=record.order.kind,
        target=record.order.target,
        status=record.status.value,
        since=record.since,
        began_at=record.began_at,
        ended_at=record.ended_at,
        ending=_ending(record.ending),
        step=_step(record.step),
        unreachable_since=record.unreachable_since,
        regions=tuple(_region(each) for each in record.regions),
        events=tuple(
            PushEvent(at=event.at, region=event.region, what=event.what)
            for event in record.history[-EVENTS:]
        ),
        kept_in=kept_in,
        leader=leader,
    )


def _ending(ending: Ending | None) -> EndingStatus | None:
    if ending is None:
        return None
    return EndingStatus(kind=ending.kind, reason=ending.reason, at=ending.at)


def _region(record: RegionRecord) -> RegionStatus:
    return RegionStatus(
        name=record.name,
        status=record.status.value,
        since=record.since,
        table_version=record.table_version,
        previous=record.previous,
        reason=record.reason,
        step=_step(record.step),
        lagging=record.lagging,
        unreachable_since=record.unreachable_since,
    )


def _step(step: HookStep | None) -> StepStatus | None:
    if step is None:
        return None
    waits = tuple(
        HookWait(hook=each.name, reason=each.reason)
        for each in step.asked
        if each.decision is Decision.WAIT
    )
    return StepStatus(method=step.method, since=step.began_at, next_at=step.next_at, waits=waits)
