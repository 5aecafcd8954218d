"""The requests of a push to hooks and regions, and the possible answers of a region.

Tasks and results are values. A task names everything it is about, so that its result can be
checked against a record that has changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from ingester.pushes.hooks import Comparison, Decision
from ingester.pushes.record import HookName, Patience, PushRecord
from ingester.pushes.states import RegionStage


class RegionUnreachable(Exception):
    """The region does not answer. Whether it has done what was asked is unknown; retried."""


class AnotherStore(RegionUnreachable):
    """The store is not the one in which the push created its generation for this region."""


class RegionFailed(Exception):
    """The region refuses, for good. Nothing was changed."""


class Created(NamedTuple):
    """The generation that a push creates in a region, and the current one."""

    table_version: int
    previous: int | None


class RegionLook(NamedTuple):
    """The state of a region at a call of its hooks."""

    previous: int | None
    """The current generation, or the one before if the push's is current."""
    statistics: Comparison | None


class Region(Protocol):
    """A store and its daemons, as a push uses them. Calls block and come one at a time.

    Every call is idempotent: it may be repeated, also by another controller. After ``roll_back`` or
    ``discard`` has returned, no ``create_version`` or ``swap`` of that push takes effect any more,
    even if its call had started before. A controller that was paused in the middle of a swap thus
    cannot undo a rollback.

    Each call may raise :class:`RegionUnreachable` or :class:`RegionFailed`.
    """

    @property
    def name(self) -> str:
        """The region's name in the push's order."""
        ...

    def register_schema(self, push: PushRecord) -> None:
        """Check the push's schema against the table's and register it; first region only."""
        ...

    def create_version(self, push: PushRecord) -> Created:
        """Create the push's generation, empty and not current."""
        ...

    def start_followers(self, push: PushRecord) -> None:
        """Let the region's followers start loading the generation."""
        ...

    def written(self, push: PushRecord) -> bool:
        """Return whether the region has all of the push's data, checked."""
        ...

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        """Return the live followers that have not confirmed the generation."""
        ...

    def swap(self, push: PushRecord) -> int | None:
        """Make the push's generation current, and return the one that was current before."""
        ...

    def roll_back(self, push: PushRecord) -> bool:
        """Make the generation before the push's swap current again.

        Returns:
            Whether the push's generation was ever current. If not, nothing changes, but no swap
            takes effect any more.

        Raises:
            RegionFailed: a later generation is current and has to be rolled back first.
        """
        ...

    def discard(self, push: PushRecord) -> bool:
        """Give up the push's generation unless it is current.

        Returns:
            False if it is current: nothing has changed.
        """
        ...

    def previous(self, push: PushRecord) -> int | None:
        """Return the current generation, or the one before if the push's is current.

        Raises:
            RegionFailed: a push that began later is live; this one can no longer swap.
        """
        ...

    def replaced(self, push: PushRecord) -> str:
        """Return why the region cannot be rolled back: a later push replaced this one; or ""."""
        ...

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return the generation's statistics beside the current one's; None before it exists."""
        ...


class RegionAction(Enum):
    """One of the calls of :class:`Region`, by its name; ``LOOK`` is two of them."""

    REGISTER_SCHEMA = "register_schema"
    CREATE = "create_version"
    START_FOLLOWERS = "start_followers"
    CHECK_WRITTEN = "written"
    CHECK_FOLLOWERS = "lagging_followers"
    SWAP = "swap"
    ROLL_BACK = "roll_back"
    DISCARD = "discard"
    LOOK = "look"

    @property
    def changes(self) -> bool:
        """Whether it changes the region, so that only the push's leader may call it."""
        return self not in (
            RegionAction.CHECK_WRITTEN,
            RegionAction.CHECK_FOLLOWERS,
            RegionAction.LOOK,
        )


ACTIONS: Mapping[RegionStage, RegionAction] = {
    RegionStage.CREATE: RegionAction.CREATE,
    RegionStage.START_FOLLOWERS: RegionAction.START_FOLLOWERS,
    RegionStage.WRITE: RegionAction.CHECK_WRITTEN,
    RegionStage.FOLLOWERS: RegionAction.CHECK_FOLLOWERS,
    RegionStage.SWAP: RegionAction.SWAP,
}
"""The request of each stage to its region."""


class HookTask(NamedTuple):
    """Call a hook; ``region`` is None if the call is about the whole push."""

    method: str
    region: str | None
    hook: str
    round: int
    step_at: datetime
    """The start of the step: an answer to an earlier step is ignored."""


class ActionTask(NamedTuple):
    """Ask a region."""

    action: RegionAction
    region: str


Task = HookTask | ActionTask


class Due(NamedTuple):
    """A task and the time at which it is due."""

    at: datetime
    task: Task
    amid: bool = False
    """Whether other hooks were called in the same round of the step."""


class ActionDone(NamedTuple):
    """A region has done what was asked; ``value`` is the return value of the call."""

    value: object


class ActionUnreachable(NamedTuple):
    """A region did not answer."""

    reason: str


class ActionFailed(NamedTuple):
    """A region refuses, for good."""

    reason: str


Result = ActionDone | ActionUnreachable | ActionFailed


@dataclass(frozen=True, slots=True)
class Rules:
    """The hooks of a push, and what happens on time-outs and failures."""

    hooks: tuple[HookName, ...] = ()
    patience: Patience = Patience(timedelta(minutes=1), timedelta(days=1), Decision.ABORT)  # noqa: RUF009 (frozen)
    unreachable_after: timedelta = timedelta(hours=1)
    on_unreachable: Literal["wait", "skip", "abort", "rollback"] = "abort"
    """What to do about a region that was unreachable for ``unreachable_after``."""
    followers_deadline: timedelta = timedelta(minutes=10)
    on_followers: Literal["wait", "proceed", "abort", "rollback"] = "abort"
    """What to do if followers have not confirmed within ``followers_deadline``."""
    on_failure: Literal["abort", "rollback"] = "abort"
    """What to do if a region fails for good."""
