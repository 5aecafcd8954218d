"""The state machine of a push and of each of its regions, as two tables of transitions.

    region   STARTED ─▶ WRITING ─▶ COMPLETED ─▶ WAITING ─▶ SERVING ─▶ ROLLED_BACK
             before SERVING also ─▶ ABORTED (given up) and ─▶ FAILED (could not be done)

    push     STARTED ─▶ WRITING ─▶ COMPLETED ─▶ WAITING ─▶ SERVING | ROLLED_BACK | ABORTED | FAILED
             COMPLETED: every region has its data. WAITING: at least one is on its way live.
             One that has ended may still be rolled back when somebody asks.

Law of this file: pure. Whoever changes a status goes through :func:`check_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


class Status(Enum):
    """Where a push, or a region of it, stands."""

    STARTED = "STARTED"
    WRITING = "WRITING"
    COMPLETED = "COMPLETED"
    WAITING = "WAITING"
    SERVING = "SERVING"
    ROLLED_BACK = "ROLLED_BACK"
    ABORTED = "ABORTED"
    FAILED = "FAILED"


S = Status
REGION_STEPS: Mapping[Status, frozenset[Status]] = {
    S.STARTED: frozenset({S.WRITING, S.ABORTED, S.FAILED}),
    S.WRITING: frozenset({S.COMPLETED, S.ABORTED, S.FAILED}),
    S.COMPLETED: frozenset({S.WAITING, S.ABORTED, S.FAILED}),
    # A swap whose answer was lost is rolled back without having been seen to serve.
    S.WAITING: frozenset({S.SERVING, S.ABORTED, S.FAILED, S.ROLLED_BACK}),
    S.SERVING: frozenset({S.ROLLED_BACK, S.FAILED}),
    # Such a region may turn out to have swapped, once it can be reached again.
    S.FAILED: frozenset({S.ROLLED_BACK, S.SERVING}),
    S.ROLLED_BACK: frozenset(),
    S.ABORTED: frozenset(),
}

_ENDS = frozenset({S.SERVING, S.ROLLED_BACK, S.ABORTED, S.FAILED})
PUSH_STEPS: Mapping[Status, frozenset[Status]] = {
    S.STARTED: frozenset({S.WRITING, *_ENDS}) - {S.SERVING},
    S.WRITING: frozenset({S.COMPLETED, S.WAITING, *_ENDS}) - {S.SERVING},
    S.COMPLETED: frozenset({S.WAITING, *_ENDS}) - {S.SERVING},
    S.WAITING: _ENDS,
    S.SERVING: frozenset({S.ROLLED_BACK, S.FAILED}),
    S.ABORTED: frozenset({S.ROLLED_BACK, S.FAILED}),
    S.FAILED: frozenset({S.ROLLED_BACK, S.ABORTED}),
    S.ROLLED_BACK: frozenset(),
}


class IllegalStep(Exception):
    """A status that cannot follow another one: a fault of the code that asked for it."""


def check_step(
    steps: Mapping[Status, frozenset[Status]], before: Status, after: Status, of: str
) -> None:
    """Raise :class:`IllegalStep` unless ``after`` may follow ``before``."""
    if after not in steps[before]:
        raise IllegalStep(f"{of}: {after.value} cannot follow {before.value}")


def status_of_regions(regions: Iterable[Status]) -> Status:
    """Return the status of a push that is under way, by those of its regions."""
    there = set(regions)
    if there & {S.WAITING, S.SERVING}:
        return S.WAITING
    if S.COMPLETED in there and not there & {S.STARTED, S.WRITING}:
        return S.COMPLETED
    return S.WRITING if there & {S.WRITING, S.COMPLETED} else S.STARTED
