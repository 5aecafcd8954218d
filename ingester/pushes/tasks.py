"""What is to be done next for a push: a hook to call, or something to ask of a region.

Law of this file: pure. A task is a value that names all that it is about, so that what became of it
can be judged against a record that has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal, NamedTuple

from ingester.pushes.answers import Decision
from ingester.pushes.asking import HookName, Patience
from ingester.pushes.stages import RegionStage


class Action(Enum):
    """A thing that is asked of a region."""

    REGISTER_SCHEMA = "register_schema"
    CREATE = "create_version"
    START_FOLLOWERS = "start_followers"
    CHECK_WRITTEN = "written"
    CHECK_FOLLOWERS = "lagging_followers"
    SWAP = "swap"
    ROLL_BACK = "roll_back"
    DISCARD = "discard"
    COMPARE = "statistics"

    @property
    def changes(self) -> bool:
        """Whether it changes something, so that only who holds the push may ask for it."""
        return self not in (Action.CHECK_WRITTEN, Action.CHECK_FOLLOWERS, Action.COMPARE)


ACTIONS: Mapping[RegionStage, Action] = {
    RegionStage.CREATE: Action.CREATE,
    RegionStage.START_FOLLOWERS: Action.START_FOLLOWERS,
    RegionStage.WRITE: Action.CHECK_WRITTEN,
    RegionStage.FOLLOWERS: Action.CHECK_FOLLOWERS,
    RegionStage.SWAP: Action.SWAP,
}
"""What each stage of a region asks of it."""


class HookTask(NamedTuple):
    """Call a hook; ``region`` is None where it is about the whole push."""

    method: str
    region: str | None
    hook: str
    round: int
    step_at: datetime
    """The begin of the step, by which an answer is known that comes too late for it."""


class ActionTask(NamedTuple):
    """Ask a region."""

    action: Action
    region: str


Task = HookTask | ActionTask


class Due(NamedTuple):
    """A task, and the time from which on it is to be done."""

    at: datetime
    task: Task


class Done(NamedTuple):
    """A region has done what it was asked; ``value`` is what its method returned."""

    value: object


class Unreachable(NamedTuple):
    """A region did not answer."""

    reason: str


class Failed(NamedTuple):
    """A region has refused for good."""

    reason: str


Result = Done | Unreachable | Failed


PATIENCE = Patience(timedelta(minutes=1), timedelta(days=1), Decision.ABORT)
"""A minute between two rounds, and a day in all."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a push is led: who is asked, and what is done where something does not come."""

    hooks: tuple[HookName, ...] = ()
    patience: Patience = PATIENCE
    unreachable_after: timedelta = timedelta(hours=1)
    on_unreachable: Literal["wait", "skip", "abort", "rollback"] = "abort"
    """What is done about a region that could not be reached for ``unreachable_after``."""
    followers_deadline: timedelta = timedelta(minutes=10)
    on_followers: Literal["wait", "proceed", "abort", "rollback"] = "abort"
    """What is done when followers have not confirmed within ``followers_deadline``."""
    on_failure: Literal["abort", "rollback"] = "abort"
    """What is done when a region fails for good."""
