"""One step of a push in which hooks are called: rounds of calls, and the outcome of the step.

    round 1: A ─▶ B ─▶ C      in the configured order, each once
             the first abort or rollback ends the step at once
             otherwise, after any wait: a pause of ``wait_interval``, then
    round 2: the hooks that said wait, and those with ``asks_anew``
             …                until no hook waits: proceed
             a wait in a round at or after the deadline counts as ``on_deadline``

A step is a value in the push's record, so a restarted controller continues with the same rounds,
counts and deadline. Every hook is called at least once at or after the deadline: a controller that
was down for long does not give up without asking (tests/pushes/test_hook_steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from ingester.pushes.hooks import PROCEED, Answer, Decision


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
    for hook in hooks:
        said = step.of(hook.name)
        if said is None:
            return hook.name
        again = said.decision is Decision.WAIT or hook.asks_anew
        if again and said.round < step.round:
            return hook.name
    return None


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
