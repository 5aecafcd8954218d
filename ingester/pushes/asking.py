"""One step's questions to all hooks: rounds of calls, and what comes of them.

    round 1: A ─▶ B ─▶ C      in configured order, each once
             any abort or rollback ends the step at once: the first one wins
             else any wait: a pause of ``wait_interval``, then
    round 2: those that said wait, and those that ask anew
             …                until nobody waits: proceed
             a wait in a round at the deadline, or later, is answered as ``on_deadline`` says

Law of this file: pure, and the step is a value: whoever keeps it goes on after a restart with the
same rounds, counts and deadline. A hook is always asked once at, or after, the deadline, so that a
controller that was down for long does not give up unasked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from ingester.pushes.answers import PROCEED, Answer, Decision


class HookName(NamedTuple):
    """A configured hook, in so far as its questions are concerned."""

    name: str
    asks_anew: bool = False


class Patience(NamedTuple):
    """How waits are dealt with."""

    interval: timedelta
    """The pause between two rounds."""
    deadline: timedelta
    """The time from the step's begin until a wait is taken for ``on_deadline``."""
    on_deadline: Decision


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one hook has said in this step so far."""

    name: str
    decision: Decision
    reason: str
    round: int
    calls: int
    first_at: datetime


class HookStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The questions of one step, as they stand."""

    method: str
    began_at: datetime
    round: int = 1
    next_at: datetime | None = None
    """The begin of the next round; None while a round is going on."""
    asked: tuple[Asked, ...] = ()

    def of(self, name: str) -> Asked | None:
        """Return what the hook of this name has said, if anything."""
        return next((each for each in self.asked if each.name == name), None)


def next_hook(step: HookStep, hooks: Sequence[HookName]) -> str | None:
    """Return the hook that is to be called next in the step's round, None when all were."""
    for hook in hooks:
        said = step.of(hook.name)
        if said is None:
            return hook.name
        again = said.decision is Decision.WAIT or hook.asks_anew
        if again and said.round < step.round:
            return hook.name
    return None


def new_round(step: HookStep) -> HookStep:
    """Return the step in the round that was paused for."""
    assert step.next_at is not None
    return msgspec.structs.replace(step, round=step.round + 1, next_at=None)


def heard(
    step: HookStep,
    hooks: Sequence[HookName],
    said: tuple[str, Answer],
    patience: Patience,
    now: datetime,
) -> tuple[HookStep, Answer | None]:
    """Return the step with a hook's answer in it, and what comes of the step once it is known.

    ``said`` is the hook's name and its answer.
    """
    name, answer = said
    before = step.of(name)
    asked = Asked(
        name=name,
        decision=answer.decision,
        reason=answer.reason,
        round=step.round,
        calls=1 if before is None else before.calls + 1,
        first_at=now if before is None else before.first_at,
    )
    kept = tuple(each for each in step.asked if each.name != name)
    step = msgspec.structs.replace(step, asked=(*kept, asked))
    if answer.decision in (Decision.ABORT, Decision.ROLLBACK):
        return step, Answer(answer.decision, f"{name}: {answer.reason or answer.decision.value}")
    if next_hook(step, hooks) is not None:
        return step, None
    return conclude(step, hooks, patience, now)


def conclude(
    step: HookStep, hooks: Sequence[HookName], patience: Patience, now: datetime
) -> tuple[HookStep, Answer | None]:
    """Return the step at the end of a round, with nobody left to call, and what comes of it.

    Hooks that are configured no longer do not count.
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
