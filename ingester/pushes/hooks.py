"""The class that users' hooks derive from, what its methods are told, and what they may answer.

    validate_hook_config, validate_hook_params          proceed, abort
    pre_start_of_push_job        post_…                 proceed, abort              post: nothing
    pre_schema_registration      post_…                 proceed, abort              post: nothing
    pre_version_creation         post_…     (region)    all four                    post: nothing
    pre_start_of_version_ingestion_for_followers        all four
                                 post_…     (region)    all four
    post_version_leader_replication         (region)    nothing
    pre_version_swap             post_…     (region)    all four                    post: all four
    pre_end_of_push_job          post_…                 all four                    post: nothing

A hook can be tried without a controller: contexts and answers are plain values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import msgspec

from ingester.pushes.states import Status

LONGEST_REASON = 1000
"""Longer reasons are cut: every record of the push and the daemons' page contain them."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Decision(Enum):
    """The possible answers of a hook."""

    PROCEED = "proceed"
    ABORT = "abort"
    """Cancel this step and all later ones; regions that have swapped stay as they are."""
    WAIT = "wait"
    """Call the hook again after ``wait_interval``."""
    ROLLBACK = "rollback"
    """Return every region that has swapped to the generation it had before the push."""


class Answer(msgspec.Struct, frozen=True):
    """A decision with its reason."""

    decision: Decision
    reason: str = ""


PROCEED = Answer(Decision.PROCEED)
WAIT = Answer(Decision.WAIT)
ABORT = Answer(Decision.ABORT)
ROLLBACK = Answer(Decision.ROLLBACK)


def wait(reason: str) -> Answer:
    """Return the answer that asks to be called again later."""
    return Answer(Decision.WAIT, reason)


def abort(reason: str) -> Answer:
    """Return the answer that cancels the rest of the push."""
    return Answer(Decision.ABORT, reason)


def rollback(reason: str) -> Answer:
    """Return the answer that undoes every swap."""
    return Answer(Decision.ROLLBACK, reason)


def readable(said: object) -> str:
    """Return a reason or an error as text that can be stored and shown in a terminal.

    Invalid Unicode and control characters except newlines and tabs are escaped; None is empty.
    """
    try:
        text = "" if said is None else str(said)
    except Exception:
        text = f"a {type(said).__name__} that cannot be shown"
    if len(text) > LONGEST_REASON:
        text = f"{text[: LONGEST_REASON - 1]}…"
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class RegionView(msgspec.Struct, frozen=True):
    """One region of the push, as a hook sees it."""

    name: str
    status: Status
    since: datetime
    """When its status last changed."""
    table_version: int | None = None
    """The generation that the push creates there; None before it exists."""
    previous: int | None = None
    """The generation that was current before the push."""
    reason: str = ""
    swapping: bool = False
    """Whether it may swap: its ``pre_version_swap`` has proceeded, and it does not serve yet."""


class PushView(msgspec.Struct, frozen=True):
    """The push, as a hook sees it."""

    push_id: str
    namespace: str
    table: str
    status: Status
    """In ``pre_end_of_push_job`` the status that the push will end with."""
    since: datetime
    began_at: datetime
    params: Mapping[str, str]
    """The parameters for hooks that the push was started with."""


class VersionStatistics(msgspec.Struct, frozen=True):
    """The size of one generation of a table, by its manifest."""

    table_version: int
    rows: int
    bytes: int
    nulls: Mapping[str, int | None]
    """The number of nulls in each column; None where a file has no such statistics."""


class Comparison(msgspec.Struct, frozen=True):
    """The push's generation and the current one in the same region."""

    new: VersionStatistics
    current: VersionStatistics | None
    """None if the table did not exist before."""


class HookContext(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of every method except ``validate_hook_config``."""

    method: str
    push: PushView
    regions: tuple[RegionView, ...]
    """All regions, in the order of the push."""
    region: str | None = None
    """The region that the call is about; None if it is about the whole push."""
    call: int = 1
    """1 at the first call of this step, then counting up, also over a restart. A call whose answer
    was lost is repeated with the same number."""
    first_called_at: datetime
    now: datetime
    deadline: datetime
    """A wait at or after the deadline counts as ``hooks.on_deadline``."""
    statistics: Comparison | None = None
    """Set for hooks with ``wants_statistics``, in calls about a region."""

    def view(self, name: str | None = None) -> RegionView:
        """Return the view of a region; by default of the one that the call is about.

        Raises:
            LookupError: no such region, or the call is about the whole push.
        """
        wanted = self.region if name is None else name
        for each in self.regions:
            if each.name == wanted:
                return each
        raise LookupError(f"push {self.push.push_id} has no region {wanted!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the context as JSON values; times are texts in UTC."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


class ConfigContext(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of ``validate_hook_config``."""

    namespace: str | None
    """The table whose overrides are checked; None for the configuration of all tables."""
    table: str | None
    overrides: Mapping[str, str]


class LifecycleHooks:
    """Base class of hooks: decides how a new generation of a table goes live, region by region.

    Every method has a default that proceeds. An instance is created for each call and dropped
    afterwards, so it cannot keep state. Methods run in a thread, one at a time for each table, for
    at most ``hooks.timeout``. After a crash of the controller, a call whose answer was not saved is
    repeated: side effects should be idempotent for a push, method and region.

    A method that may answer returns an :class:`Answer`. Any other value, including ``None``, and an
    answer that the method may not give, count as a failed call.
    """

    asks_anew: ClassVar[bool] = False
    """True if a ``proceed`` holds only for the moment: the hook is then called again in each later
    round of the same step."""
    wants_statistics: ClassVar[bool] = False
    """True to receive ``context.statistics`` in calls about a region."""

    enabled_by: ClassVar[str | None] = None
    """The configuration key that enables the class; without a value for a table, it is not called
    for that table. None: it is always called."""
    options: ClassVar[Mapping[str, str] | None] = None
    """The configuration keys that the class knows, each with its meaning. If every configured class
    declares its keys, any other key is refused."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """Take ``hooks.config`` with the overrides of the table that the call is about."""
        self.config = config

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check ``self.config`` at startup, for all tables and for each table's overrides."""
        return PROCEED

    def validate_hook_params(self, context: HookContext) -> Answer:
        """Check the parameters of a push before its first step."""
        return PROCEED

    def pre_start_of_push_job(self, context: HookContext) -> Answer:
        """Decide whether the push may start: proceed or abort."""
        return PROCEED

    def post_start_of_push_job(self, context: HookContext) -> None:
        """Called when the push has started."""

    def pre_schema_registration(self, context: HookContext) -> Answer:
        """Decide whether the schema may be registered: proceed or abort."""
        return PROCEED

    def post_schema_registration(self, context: HookContext) -> None:
        """Called when the schema is registered."""

    def pre_version_creation(self, context: HookContext) -> Answer:
        """Decide whether the generation may be created in the region."""
        return PROCEED

    def post_version_creation(self, context: HookContext) -> None:
        """Called when the generation exists in the region."""

    def pre_start_of_version_ingestion_for_followers(self, context: HookContext) -> Answer:
        """Decide whether the region's followers may start loading the generation."""
        return PROCEED

    def post_start_of_version_ingestion_for_followers(self, context: HookContext) -> Answer:
        """Decide whether the push continues after its followers were notified."""
        return PROCEED

    def post_version_leader_replication(self, context: HookContext) -> None:
        """Called when all data is in the region."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Decide whether the generation may go live in the region."""
        return PROCEED

    def post_version_swap(self, context: HookContext) -> Answer:
        """Decide whether the push continues after the generation went live in the region."""
        return PROCEED

    def pre_end_of_push_job(self, context: HookContext) -> Answer:
        """Decide whether the push may end with the status in ``context.push``."""
        return PROCEED

    def post_end_of_push_job(self, context: HookContext) -> None:
        """Called with the status that the push has ended with."""


class HookMethod(NamedTuple):
    """One method of :class:`LifecycleHooks`."""

    name: str
    answers: frozenset[Decision]
    """The allowed decisions; none if the method is only notified."""

    @property
    def guards(self) -> bool:
        """Whether the method precedes the step it is named after: a failed call then aborts."""
        return not self.name.startswith("post_")


_NOTHING: frozenset[Decision] = frozenset()
_YES_OR_NO = frozenset({Decision.PROCEED, Decision.ABORT})
_ALL = frozenset(Decision)

METHODS: Mapping[str, HookMethod] = {
    name: HookMethod(name, answers)
    for name, answers in {
        "validate_hook_config": _YES_OR_NO,
        "validate_hook_params": _YES_OR_NO,
        "pre_start_of_push_job": _YES_OR_NO,
        "post_start_of_push_job": _NOTHING,
        "pre_schema_registration": _YES_OR_NO,
        "post_schema_registration": _NOTHING,
        "pre_version_creation": _ALL,
        "post_version_creation": _NOTHING,
        "pre_start_of_version_ingestion_for_followers": _ALL,
        "post_start_of_version_ingestion_for_followers": _ALL,
        "post_version_leader_replication": _NOTHING,
        "pre_version_swap": _ALL,
        "post_version_swap": _ALL,
        "pre_end_of_push_job": _ALL,
        "post_end_of_push_job": _NOTHING,
    }.items()
}
