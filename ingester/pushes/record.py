"""The record of a push: all that a controller needs to continue where another one was killed.

    PushRecord ─┬─ order, params, plan              as the push was started
                ├─ stage, step, status              the state of the push as a whole
                ├─ regions: RegionRecord, …         the state of each region
                ├─ ending                           why no further step is started
                └─ history                          events, for people

Records are immutable values with a JSON form that stays readable by later versions
(tests/pushes/test_old_records). :mod:`ingester.pushes.rollout` computes the next record.

A step in which hooks are called consists of rounds:

    round 1: A ─▶ B ─▶ C      in the configured order, each once
             the first abort or rollback ends the step at once
             otherwise, after any wait: a pause of ``wait_interval``, then
    round 2: the hooks that said wait, and those with ``asks_anew``
             …                until no hook waits: proceed
             a wait in a round at or after the deadline counts as ``on_deadline``

Every hook is called at least once at or after the deadline: a controller that was down for long
does not give up without asking (tests/pushes/test_hook_steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal, NamedTuple, TypeVar

import msgspec

from ingester.pushes.hooks import (
    PROCEED,
    Answer,
    Decision,
    PushView,
    RegionView,
    readable,
)
from ingester.pushes.states import (
    PUSH_STEPS,
    REGION_STEPS,
    PushStage,
    RegionOrder,
    RegionStage,
    Status,
    check_step,
)


class HookName(NamedTuple):
    """A configured hook, by its name and whether each round calls it again."""

    name: str
    asks_anew: bool = False


class Patience(NamedTuple):
    """How long hooks may answer wait."""

    interval: timedelta
    """The pause between two rounds."""
    deadline: timedelta
    """The time from the start of the step."""
    on_deadline: Decision
    """What a wait at or after the deadline counts as."""


class AskedHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last answer of one hook in this step."""

    name: str
    decision: Decision
    reason: str
    round: int
    calls: int
    first_at: datetime


class HookStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The calls of one step so far."""

    method: str
    began_at: datetime
    round: int = 1
    next_at: datetime | None = None
    """The start of the next round; None during a round."""
    asked: tuple[AskedHook, ...] = ()

    def of(self, name: str) -> AskedHook | None:
        """Return the last answer of the hook with this name."""
        return next((each for each in self.asked if each.name == name), None)


def next_hook(step: HookStep, hooks: Sequence[HookName]) -> str | None:
    """Return the hook to call next in this round; None at the end of the round."""
    return next(iter(hooks_left(step, hooks)), None)


def hooks_left(step: HookStep, hooks: Sequence[HookName]) -> list[str]:
    """Return the hooks that are still to be called in this round."""
    left = []
    for hook in hooks:
        said = step.of(hook.name)
        again = said is None or said.decision is Decision.WAIT or hook.asks_anew
        if again and (said is None or said.round < step.round):
            left.append(hook.name)
    return left


def new_round(step: HookStep) -> HookStep:
    """Return the step at the start of its next round."""
    assert step.next_at is not None
    return msgspec.structs.replace(step, round=step.round + 1, next_at=None)


def with_answer(
    step: HookStep,
    hooks: Sequence[HookName],
    said: tuple[str, Answer],
    patience: Patience,
    now: datetime,
) -> tuple[HookStep, Answer | None]:
    """Return the step with a hook's answer, and the outcome of the step once it is known.

    ``said`` is the hook's name and its answer.
    """
    name, answer = said
    before = step.of(name)
    asked = AskedHook(
        name=name,
        decision=answer.decision,
        reason=answer.reason,
        round=step.round,
        calls=1 if before is None else before.calls + 1,
        first_at=now if before is None else before.first_at,
    )
    others = tuple(each for each in step.asked if each.name != name)
    step = msgspec.structs.replace(step, asked=(*others, asked))
    if answer.decision in (Decision.ABORT, Decision.ROLLBACK):
        return step, Answer(answer.decision, f"{name}: {answer.reason or answer.decision.value}")
    if next_hook(step, hooks) is not None:
        return step, None
    return conclude(step, hooks, patience, now)


def conclude(
    step: HookStep, hooks: Sequence[HookName], patience: Patience, now: datetime
) -> tuple[HookStep, Answer | None]:
    """Return the step at the end of a round, and its outcome; None if another round follows.

    Answers of hooks that are no longer configured are ignored.
    """
    configured = {hook.name for hook in hooks}
    waits = [a for a in step.asked if a.decision is Decision.WAIT and a.name in configured]
    if not waits:
        return step, PROCEED
    deadline = step.began_at + patience.deadline
    if now >= deadline:
        names = ", ".join(f"{each.name} ({each.reason or 'wait'})" for each in waits)
        reason = f"{step.method} was waited for since {step.began_at.isoformat()}: {names}"
        return step, Answer(patience.on_deadline, reason)
    next_at = min(now + patience.interval, deadline)
    return msgspec.structs.replace(step, next_at=next_at), None


HISTORY = 500
"""The number of events in a record, the newest ones."""
T = TypeVar("T")


class HistoryEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event of the push, or of one of its regions."""

    at: datetime
    region: str | None
    what: str


class Cause(Enum):
    """The cause of a push's early end."""

    HOOK = "hook"
    REQUEST = "request"
    FAILURE = "failure"


RequestKind = Literal["abort", "rollback", "release"]
"""What people request of a push: to end it, to undo it, or to let a deferred one go live."""


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The push is being aborted or rolled back; no further step is started."""

    kind: Literal["abort", "rollback"]
    reason: str
    cause: Cause
    at: datetime


class RegionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of one region of a push."""

    name: str
    since: datetime
    status: Status = Status.STARTED
    stage: RegionStage = RegionStage.PRE_CREATION
    step: HookStep | None = None
    """The calls of the current stage, if it is one of hooks."""
    table_version: int | None = None
    previous: int | None = None
    swap_number: int = 0
    """The position of its swap among those of the push, from 1; 0 before it was started.

    Saved before the swap is requested: a region with a number may have swapped.
    """
    lagging: tuple[str, ...] = ()
    """The followers that the swap waits for."""
    followers_since: datetime | None = None
    unreachable_since: datetime | None = None
    closed: bool = False
    """This push does nothing more in the region."""
    reason: str = ""

    @property
    def swapping(self) -> bool:
        """Whether hooks have allowed its swap, and it has not happened yet."""
        return not self.closed and self.stage in (RegionStage.FOLLOWERS, RegionStage.SWAP)


class PushPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a push; never changes after its start."""

    schema: bytes = b""
    """The columns of its rows, as an Arrow IPC schema."""
    primary_key: tuple[str, ...] = ()
    """The key of a new table, like the next two; otherwise the table's own."""
    partition_by: tuple[str, ...] | None = None
    """None: the default partitions of a new table."""
    sort_by: tuple[str, ...] = ()
    replay_since: str | None = None
    """Since when rows streamed into the previous generation are copied into the new one:
    ``"start"``, a time (ISO 8601), or a manifest version; None: no rows are."""


class PushRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of a push."""

    push_id: str
    namespace: str
    table: str
    order: RegionOrder
    params: Mapping[str, str] = {}
    plan: PushPlan = PushPlan()
    deferred: bool = False
    """No region swaps until a request releases the push."""
    began_at: datetime
    since: datetime
    status: Status = Status.STARTED
    stage: PushStage = PushStage.PARAMS
    step: HookStep | None = None
    regions: tuple[RegionRecord, ...]
    swaps: int = 0
    requests: int = 0
    """The number of requests to abort or roll back that were processed."""
    ending: Ending | None = None
    unreachable_since: datetime | None = None
    """Since when the region with the schema is unreachable."""
    end_asked: bool = False
    """Whether ``pre_end_of_push_job`` has answered."""
    ended_at: datetime | None = None
    history: tuple[HistoryEvent, ...] = ()

    def region(self, name: str) -> RegionRecord:
        """Return the record of a region.

        Raises:
            LookupError: the push has no such region.
        """
        for each in self.regions:
            if each.name == name:
                return each
        raise LookupError(f"push {self.push_id} has no region {name!r}")

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.stage is PushStage.OVER


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PushRecord)


def new_push(
    push_id: str,
    table: tuple[str, str],
    order: RegionOrder,
    params: Mapping[str, str],
    now: datetime,
    plan: PushPlan | None = None,
    *,
    deferred: bool = False,
) -> PushRecord:
    """Return the record of a push at its start; ``table`` is namespace and name.

    Raises:
        ValueError: a parameter is not text, or the record could not be read again.
    """
    namespace, name = table
    checked_params(params)
    record = PushRecord(
        push_id=push_id,
        namespace=namespace,
        table=name,
        order=order,
        params=dict(params),
        plan=plan or PushPlan(),
        deferred=deferred,
        began_at=now,
        since=now,
        regions=tuple(RegionRecord(name=region, since=now) for region in order.regions),
        history=(HistoryEvent(now, None, "push began"),),
    )
    _check_readable(record)
    return record


def checked_params(params: object) -> dict[str, str]:
    """Return the parameters of a push as a dict.

    Raises:
        ValueError: naming the parameter that is not valid text.
    """
    if not isinstance(params, Mapping):
        raise ValueError(f"params: {readable(repr(params))} is not a mapping of names to texts")
    for name, value in params.items():
        for what, said in ((f"the name {name!r}", name), (f"{name!r}: {value!r}", value)):
            if not isinstance(said, str):
                raise ValueError(
                    f"params: {readable(what)} is of type {type(said).__name__}, not text:"
                    f" write {readable(repr(str(said)))}"
                )
            if not _is_unicode(said):
                raise ValueError(f"params: {readable(what)} is not valid Unicode")
    return dict(params)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_readable(record: PushRecord) -> None:
    """Refuse a record that no controller could read, so that its push cannot be rolled back."""
    try:
        same = decode(encode(record)) == record
    except (ValueError, TypeError) as exc:
        raise ValueError(f"push {record.push_id!r} cannot be stored: {exc}") from exc
    if not same:
        raise ValueError(f"push {record.push_id!r} cannot be stored: it changes when read again")


def encode(record: PushRecord) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> PushRecord:
    """Return the record of its JSON form.

    Raises:
        ValueError: the bytes are not a record.
    """
    return decoded(_decoder, data)


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Return what a decoder makes of bytes from a store or another process.

    Raises:
        ValueError: they cannot be decoded; no other error is raised, whatever the bytes are.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def with_region(record: PushRecord, region: RegionRecord) -> PushRecord:
    """Return the record with a region replaced.

    Raises:
        IllegalStep: the region's status cannot become the new one.
    """
    before = record.region(region.name)
    if region.status is not before.status:
        check_step(REGION_STEPS, before.status, region.status, f"region {region.name}")
    regions = tuple(region if each.name == region.name else each for each in record.regions)
    return msgspec.structs.replace(record, regions=regions)


def with_status(record: PushRecord, status: Status, now: datetime) -> PushRecord:
    """Return the record with a status, which may be the current one.

    Raises:
        IllegalStep: the push cannot have that status next.
    """
    if status is record.status:
        return record
    check_step(PUSH_STEPS, record.status, status, f"push {record.push_id}")
    changed = msgspec.structs.replace(record, status=status, since=now)
    return with_event(changed, None, status.value, now)


def with_event(record: PushRecord, region: str | None, what: str, now: datetime) -> PushRecord:
    """Return the record with one more event in its history."""
    history = (*record.history, HistoryEvent(now, region, what))[-HISTORY:]
    return msgspec.structs.replace(record, history=history)


def new_events(before: PushRecord, after: PushRecord) -> tuple[HistoryEvent, ...]:
    """Return the events of the later record that the earlier one does not have."""
    known, events = before.history, after.history
    for new in range(len(events) + 1):
        # The oldest events are dropped from long histories.
        shared = events[: len(events) - new]
        if known[len(known) - len(shared) :] == shared:
            return events[len(events) - new :]
    return events


def push_view(record: PushRecord, status: Status | None = None) -> PushView:
    """Return the push as hooks see it; ``status`` overrides its current one."""
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
    """Return the regions as hooks see them."""
    return tuple(
        RegionView(
            name=each.name,
            status=each.status,
            since=each.since,
            table_version=each.table_version,
            previous=each.previous,
            reason=each.reason,
            swapping=each.swapping,
        )
        for each in regions
    )
