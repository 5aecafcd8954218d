"""The status of a push, as its controller publishes it: one object in each region's store.

    _push_status/<push id>    PushStatus as JSON, overwritten by the push's controller
                              after each record it keeps, and every ``TELL_EVERY_S``

The object is for people and decides nothing: it may be old, gone, or written by another version.
Readers therefore ignore unknown fields, and ``status`` is text rather than an enum.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

FOLDER = "_push_status"
TELL_EVERY_S = 20.0
"""The interval at which an active push is published again, also without a change."""
EVENTS = 20
"""The number of events in a status, the newest ones."""


At = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone."""


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The controller that led the push when it was published, and the time by its clock."""

    controller: str
    at: At


class KeptIn(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the push's record: any region, and its store."""

    region: str
    url: str


class EndingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Why the push is ending; ``kind`` is abort or rollback."""

    kind: str
    reason: str
    at: At


class HookWait(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that answered wait, and its reason."""

    hook: str
    reason: str


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The current step: its hooks are being called, or will be called again."""

    method: str
    since: At
    next_at: At | None = None
    """When the hooks are called next; null while they are being called."""
    waits: tuple[HookWait, ...] = ()


class PushEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the push, or of one of its regions."""

    at: At
    region: str | None
    what: str


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a push in one region."""

    name: str
    status: str
    """The name of the status, as ``SERVING``."""
    since: At
    """When the status last changed."""
    table_version: int | None = None
    """The version that the push creates there; null before that."""
    previous: int | None = None
    """The version that was current before the push; null if there was none."""
    reason: str = ""
    step: StepStatus | None = None
    lagging: tuple[str, ...] = ()
    """The followers that the switch waits for."""
    unreachable_since: At | None = None


class PushStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a push, as its controller last published it."""

    push_id: str
    namespace: str
    table: str
    order: str
    """The rollout order: at_once, in_order or target_first."""
    target: str | None = None
    status: str
    """The name of the status, as ``SERVING``."""
    since: At
    began_at: At
    ended_at: At | None = None
    ending: EndingStatus | None = None
    deferred: bool = False
    """Whether no region switches until the push is released."""
    step: StepStatus | None = None
    unreachable_since: At | None = None
    """Since when the region with the schema is unreachable."""
    regions: tuple[RegionStatus, ...]
    events: tuple[PushEvent, ...] = ()
    """The newest events, oldest first."""
    kept_in: KeptIn
    leader: Leader


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PushStatus)


def status_path(push_id: str) -> str:
    """Return the path of a push's status in each region's store."""
    return f"{FOLDER}/{push_id}"


def encode_push_status(status: PushStatus) -> bytes:
    """Return the status as JSON."""
    return _encoder.encode(status)


def decode_push_status(data: bytes) -> PushStatus:
    """Return the status that :func:`encode_push_status` was given.

    Raises:
        ValueError: the bytes are not a push status.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc
