"""All that is kept of a push: what a controller needs to go on where another one was killed.

    PushRecord ─┬─ order, params, plan              as the push was begun
                ├─ stage, step, status              where the push as a whole stands
                ├─ regions: RegionRecord, …         where each of them stands
                ├─ ending                           why nothing new is begun any more
                └─ history                          what happened, for people

Law of this file: pure, and every record is a value; ``decode(encode(r)) == r``. How a record
becomes the next one is :mod:`ingester.pushes.rollout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Literal

import msgspec

from ingester.pushes.asking import HookStep
from ingester.pushes.contexts import PushView, RegionView
from ingester.pushes.kept_json import decoded
from ingester.pushes.orders import Order
from ingester.pushes.stages import PushStage, RegionStage
from ingester.pushes.status import PUSH_STEPS, REGION_STEPS, Status, check_step

HISTORY = 500
"""So many events are kept of a push, its newest ones."""


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that happened to a push, or to one region of it."""

    at: datetime
    region: str | None
    what: str


class Cause(Enum):
    """The one whose word ended a push before its time."""

    HOOK = "hook"
    REQUEST = "request"
    FAILURE = "failure"


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From now on nothing is begun; what was made is given up, or undone as well."""

    kind: Literal["abort", "rollback"]
    reason: str
    cause: Cause
    at: datetime


class RegionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where one region of a push stands."""

    name: str
    since: datetime
    status: Status = Status.STARTED
    stage: RegionStage = RegionStage.PRE_CREATION
    step: HookStep | None = None
    """The questions of the stage, where it is one of hooks."""
    table_version: int | None = None
    previous: int | None = None
    swap_number: int = 0
    """The place of its swap among those of the push, from 1; 0 before it was begun.

    It is kept before the swap is asked for: what has a number may have swapped.
    """
    lagging: tuple[str, ...] = ()
    """The followers that the swap waits for."""
    followers_since: datetime | None = None
    unreachable_since: datetime | None = None
    closed: bool = False
    """Nothing more is done about it: by this push it stays as it is."""
    reason: str = ""


class PushPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a push brings, as it was begun; nothing of it changes later."""

    schema: bytes = b""
    """The columns of its rows, as an Arrow IPC schema."""
    primary_key: tuple[str, ...] = ()
    """This, and the next two, of a table that is not there yet; else they are the table's."""
    partition_by: tuple[str, ...] | None = None
    """None: as tables are laid out of which nothing is said."""
    sort_by: tuple[str, ...] = ()
    replay_since: str | None = None
    """From when on rows that are streamed into the version before go into the new one as well:
    ``"start"``, a time (ISO 8601), or a version of the manifest; None: they do not."""


PLAN = PushPlan()


class PushRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a push stands."""

    push_id: str
    namespace: str
    table: str
    order: Order
    params: Mapping[str, str] = {}
    plan: PushPlan = PLAN
    began_at: datetime
    since: datetime
    status: Status = Status.STARTED
    stage: PushStage = PushStage.PARAMS
    step: HookStep | None = None
    regions: tuple[RegionRecord, ...]
    swaps: int = 0
    requests: int = 0
    """So many of the requests to give it up, or undo it, were taken in."""
    ending: Ending | None = None
    unreachable_since: datetime | None = None
    """Since when the region of the schema cannot be reached."""
    end_asked: bool = False
    """Whether ``pre_end_of_push_job`` has had its answer."""
    ended_at: datetime | None = None
    history: tuple[Event, ...] = ()

    def region(self, name: str) -> RegionRecord:
        """Return the record of a region.

        Raises:
            LookupError: there is none of that name.
        """
        for each in self.regions:
            if each.name == name:
                return each
        raise LookupError(f"push {self.push_id} has no region {name!r}")

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stage is PushStage.OVER


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PushRecord)


def new_push(
    push_id: str,
    table: tuple[str, str],
    order: Order,
    params: Mapping[str, str],
    now: datetime,
    plan: PushPlan = PLAN,
) -> PushRecord:
    """Return the record of a push that has just begun; ``table`` is namespace and name."""
    namespace, name = table
    return PushRecord(
        push_id=push_id,
        namespace=namespace,
        table=name,
        order=order,
        params=dict(params),
        plan=plan,
        began_at=now,
        since=now,
        regions=tuple(RegionRecord(name=region, since=now) for region in order.regions),
        history=(Event(now, None, "push began"),),
    )


def encode(record: PushRecord) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> PushRecord:
    """Return the record that :func:`encode` was given.

    Raises:
        ValueError: these are no bytes of a record.
    """
    return decoded(_decoder, data)


def with_region(record: PushRecord, region: RegionRecord) -> PushRecord:
    """Return the record with a region's new record in the place of its old one.

    Raises:
        IllegalStep: the region's status cannot become the new one.
    """
    before = record.region(region.name)
    if region.status is not before.status:
        check_step(REGION_STEPS, before.status, region.status, f"region {region.name}")
    regions = tuple(region if each.name == region.name else each for each in record.regions)
    return msgspec.structs.replace(record, regions=regions)


def with_status(record: PushRecord, status: Status, now: datetime) -> PushRecord:
    """Return the record of a push that has a status, which may be the one that it had.

    Raises:
        IllegalStep: the push cannot have that status next.
    """
    if status is record.status:
        return record
    check_step(PUSH_STEPS, record.status, status, f"push {record.push_id}")
    changed = msgspec.structs.replace(record, status=status, since=now)
    return noted(changed, None, status.value, now)


def noted(record: PushRecord, region: str | None, what: str, now: datetime) -> PushRecord:
    """Return the record with one more event in its history."""
    history = (*record.history, Event(now, region, what))[-HISTORY:]
    return msgspec.structs.replace(record, history=history)


def new_events(before: PushRecord, after: PushRecord) -> tuple[Event, ...]:
    """Return the events of the later record that the earlier one of the same push has not."""
    known, events = before.history, after.history
    for new in range(len(events) + 1):
        # The oldest ones are dropped where there are too many.
        shared = events[: len(events) - new]
        if known[len(known) - len(shared) :] == shared:
            return events[len(events) - new :]
    return events


def push_view(record: PushRecord, status: Status | None = None) -> PushView:
    """Return what hooks see of the push, with another status than its own where one is given."""
    return PushView(
        push_id=record.push_id,
        namespace=record.namespace,
        table=record.table,
        status=status or record.status,
        since=record.since,
        began_at=record.began_at,
        params=record.params,
    )


def region_views(regions: Sequence[RegionRecord]) -> tuple[RegionView, ...]:
    """Return what hooks see of the regions."""
    return tuple(
        RegionView(
            name=each.name,
            status=each.status,
            since=each.since,
            table_version=each.table_version,
            previous=each.previous,
            reason=each.reason,
        )
        for each in regions
    )
