"""The statuses and stages of a push and of its regions, and the order in which regions go live.

    region   STARTED ─▶ WRITING ─▶ COMPLETED ─▶ WAITING ─▶ SERVING ─▶ ROLLED_BACK
             before SERVING also ─▶ ABORTED (given up) and ─▶ FAILED (refused)

    push     STARTED ─▶ WRITING ─▶ COMPLETED ─▶ WAITING ─▶ SERVING | ROLLED_BACK | ABORTED | FAILED
             COMPLETED: every region has its data. WAITING: at least one region is going live.
             A push that has ended may still be rolled back on request.

A status is what people see; a stage is the finer step that the push is at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Literal

import msgspec


class Status(Enum):
    """The status of a push, or of one of its regions."""

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
    # A swap whose answer was lost is rolled back without ever having been seen as SERVING.
    S.WAITING: frozenset({S.SERVING, S.ABORTED, S.FAILED, S.ROLLED_BACK}),
    S.SERVING: frozenset({S.ROLLED_BACK, S.FAILED}),
    # A failed region may turn out to have swapped once it is reachable again.
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
    """A status that cannot follow another one: a bug in the caller."""


def check_step(
    steps: Mapping[Status, frozenset[Status]], before: Status, after: Status, of: str
) -> None:
    """Raise :class:`IllegalStep` unless ``after`` may follow ``before``."""
    if after not in steps[before]:
        raise IllegalStep(f"{of}: {after.value} cannot follow {before.value}")


def status_of_regions(regions: Iterable[Status]) -> Status:
    """Return the status of an unfinished push, by the statuses of its regions."""
    found = set(regions)
    if found & {S.WAITING, S.SERVING}:
        return S.WAITING
    if S.COMPLETED in found and not found & {S.STARTED, S.WRITING}:
        return S.COMPLETED
    return S.WRITING if found & {S.WRITING, S.COMPLETED} else S.STARTED


class PushStage(Enum):
    """A stage of the push as a whole, in order. ``SCHEMA`` asks the first region."""

    PARAMS = "params"
    PRE_START = "pre_start"
    POST_START = "post_start"
    PRE_SCHEMA = "pre_schema"
    SCHEMA = "schema"
    POST_SCHEMA = "post_schema"
    REGIONS = "regions"
    """All regions, each at its own pace."""
    PRE_END = "pre_end"
    POST_END = "post_end"
    OVER = "over"

    @property
    def next(self) -> PushStage:
        """The stage that follows."""
        stages = list(PushStage)
        return stages[stages.index(self) + 1]


class RegionStage(Enum):
    """A stage of one region, in order.

    ``CREATE``, ``START_FOLLOWERS``, ``WRITE``, ``FOLLOWERS`` and ``SWAP`` ask the region,
    ``IN_LINE`` waits for the order; the others call hooks.
    """

    PRE_CREATION = "pre_creation"
    CREATE = "create"
    POST_CREATION = "post_creation"
    PRE_INGESTION = "pre_ingestion"
    START_FOLLOWERS = "start_followers"
    POST_INGESTION = "post_ingestion"
    WRITE = "write"
    POST_REPLICATION = "post_replication"
    IN_LINE = "in_line"
    PRE_SWAP = "pre_swap"
    FOLLOWERS = "followers"
    SWAP = "swap"
    POST_SWAP = "post_swap"
    DONE = "done"

    @property
    def next(self) -> RegionStage:
        """The stage that follows."""
        stages = list(RegionStage)
        return stages[stages.index(self) + 1]


class RegionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The regions of a push, and the order in which they go live.

    ``at_once``: each as soon as it has its data. ``in_order``: one after another, as listed.
    ``target_first``: the target, then all others at once.

    Raises:
        ValueError: no region, a duplicate, or a target that is not a region of the push.
    """

    regions: tuple[str, ...]
    kind: Literal["at_once", "in_order", "target_first"] = "at_once"
    target: str | None = None

    def __post_init__(self) -> None:
        if not self.regions:
            raise ValueError("a push needs at least one region")
        twice = sorted({name for name in self.regions if self.regions.count(name) > 1})
        if twice:
            raise ValueError(f"regions {', '.join(twice)} are named twice")
        if (self.kind == "target_first") != (self.target is not None):
            raise ValueError("order target_first and a target region go together")
        if self.target is not None and self.target not in self.regions:
            raise ValueError(f"target {self.target!r} is none of {', '.join(self.regions)}")

    def before(self, region: str) -> Collection[str]:
        """Return the regions that go live before this one."""
        if self.kind == "in_order":
            return self.regions[: self.regions.index(region)]
        if self.target is not None and region != self.target:
            return (self.target,)
        return ()

    def is_next(self, region: str, passed: Callable[[str], bool]) -> bool:
        """Return whether the region may go live; ``passed`` tells which regions have."""
        return all(passed(name) for name in self.before(region))


def rollback_order(swaps: Sequence[tuple[int, str]]) -> list[str]:
    """Return the regions in the reverse order of their swaps, given as (number, region)."""
    return [name for number, name in sorted(swaps, reverse=True) if number > 0]
