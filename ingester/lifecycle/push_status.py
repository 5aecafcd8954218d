"""What a push tells the daemons of its regions about itself: one object in each region's store.

    _push_status/<push id>    PushStatus as JSON, overwritten by whoever leads the push:
                              after each record that it has kept, and every ``TELL_EVERY_S``

Law of this file: pure. The object is for people and decides nothing: it may be old, gone, or of
another version of this code. So whoever reads it ignores fields that it does not know, and takes a
status for a text. How a push goes on is decided by :mod:`ingester.lifecycle.record` alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from ingester.lifecycle.answers import Decision
from ingester.lifecycle.asking import HookStep
from ingester.lifecycle.kept_json import decoded
from ingester.lifecycle.record import Ending, PushRecord, RegionRecord

FOLDER = "_push_status"
TELL_EVERY_S = 20.0
"""A push that is led is told anew this often, also where nothing has changed."""
EVENTS = 20
"""So many events are told, the newest ones."""


At = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that says its zone."""


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The one who led the push when this was told, and the time by its clock."""

    controller: str
    at: At


class KeptIn(msgspec.Struct, frozen=True, kw_only=True):
    """Where the push is kept: a region, be it one of the push's or not, and its store's URL."""

    region: str
    url: str


class EndingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing new is begun any more; ``kind`` is abort or rollback."""

    kind: str
    reason: str
    at: At


class HookWait(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that has said wait, and its reason."""

    hook: str
    reason: str


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The step of hooks that is under way: they are being called, or are waited for."""

    method: str
    since: At
    next_at: At | None = None
    """When they are called again; null while they are being called."""
    waits: tuple[HookWait, ...] = ()


class PushEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to the push, or to one region of it."""

    at: At
    region: str | None
    what: str


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where one region of a push stands."""

    name: str
    status: str
    """A :class:`ingester.lifecycle.Status` by its name."""
    since: At
    """The time of the last change of its status."""
    table_version: int | None = None
    """The version that the push makes there; null before it was made."""
    previous: int | None = None
    """The version that counted before the push; null where there was none."""
    reason: str = ""
    step: StepStatus | None = None
    lagging: tuple[str, ...] = ()
    """The followers that the swap waits for."""
    unreachable_since: At | None = None


class PushStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a push stands, as whoever led it has told last."""

    push_id: str
    namespace: str
    table: str
    order: str
    """How the regions go live: at_once, in_order or target_first."""
    target: str | None = None
    status: str
    """A :class:`ingester.lifecycle.Status` by its name."""
    since: At
    began_at: At
    ended_at: At | None = None
    ending: EndingStatus | None = None
    step: StepStatus | None = None
    unreachable_since: At | None = None
    """Since when the region of the schema cannot be reached."""
    regions: tuple[RegionStatus, ...]
    events: tuple[PushEvent, ...] = ()
    """The newest, oldest first."""
    kept_in: KeptIn
    leader: Leader


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PushStatus)


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


def status_path(push_id: str) -> str:
    """Return the path of a push's status in each region's store."""
    return f"{FOLDER}/{push_id}"


def encode_push_status(status: PushStatus) -> bytes:
    """Return the status as JSON."""
    return _encoder.encode(status)


def decode_push_status(data: bytes) -> PushStatus:
    """Return the status that :func:`encode_push_status` was given.

    Raises:
        ValueError: these are no bytes of a status.
    """
    return decoded(_decoder, data)
