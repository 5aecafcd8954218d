"""A world for pushes: regions in memory that swap, fail, become unreachable, and lose answers.

A region promises what `ingester.pushes.regions` says and no more: a repeated request acts once,
and a discarded or undone version never swaps again, not even by a call that began before.
:class:`Life` is a controller that can be stopped between any two of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

from ingester.pushes.driver import DriverPace, Job, PushDriver
from ingester.pushes.hooks import (
    METHODS,
    PROCEED,
    Answer,
    Comparison,
    Decision,
    HookContext,
    VersionStatistics,
)
from ingester.pushes.record import HookName, Patience, PushRecord, new_push
from ingester.pushes.states import RegionOrder
from ingester.pushes.store import HeldPush, PushStore
from ingester.pushes.tasks import Created, RegionFailed, RegionUnreachable, Rules
from persist.store import ObjectStore, StoreRetry
from tests.drivers.memory_store import MemoryStore

BEGAN = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
ONCE = StoreRetry(first_s=0.001, cap_s=0.001, attempts=3)
PACE = DriverPace(poll=timedelta(seconds=1), retry=timedelta(seconds=5))
PATIENCE = Patience(timedelta(seconds=60), timedelta(hours=24), Decision.ABORT)
OLD = 1
"""The version that every region serves before the first push."""


class Killed(BaseException):
    """The controller's process has ended: no code catches this."""


class World:
    """A clock, regions, and a log of events.

    ``kill_in``: the number of further moments (before and after each action) until the
    controller is killed.
    """

    def __init__(self, names: Sequence[str] = ("a", "b", "c", "d")) -> None:
        self.now = BEGAN
        self.log: list[str] = []
        """Swaps and rollbacks as they took effect, as ``swap a`` and ``back a``."""
        self.regions = {name: SimRegion(self, name) for name in names}
        self.faults: list[str] = []
        """Requests that a region must never receive; an error there would count as the region's."""
        self.moments = 0
        self.kill_in = -1

    def moment(self) -> None:
        """Pass a moment in which a controller may be killed."""
        self.moments += 1
        if self.kill_in == 0:
            raise Killed
        self.kill_in -= 1

    def current(self) -> list[int]:
        """The version that each region serves."""
        return [region.current for region in self.regions.values()]


class SimRegion:
    """A region in memory."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self.current = OLD
        self.versions = {OLD}
        self.made: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self.given_up: set[str] = set()
        self.data_there = True
        self.lagging: tuple[str, ...] = ()
        self.away = False
        self.lose_answers = 0
        """How many of the next answers are lost after the action was done."""
        self.refuses: set[str] = set()
        """The methods that fail permanently."""
        self.asked: list[str] = []
        self.nulls = 0

    @property
    def name(self) -> str:
        return self._name

    @contextmanager
    def _asking(self, method: str) -> Iterator[None]:
        self._world.moment()
        if self.away:
            raise RegionUnreachable(f"{self._name} is away")
        if method in self.refuses:
            raise RegionFailed("it was told to refuse")
        self.asked.append(method)
        yield
        self._world.moment()
        if self.lose_answers:
            self.lose_answers -= 1
            raise RegionUnreachable("the answer was lost")

    def register_schema(self, push: PushRecord) -> None:
        with self._asking("register_schema"):
            pass

    def create_version(self, push: PushRecord) -> Created:
        with self._asking("create_version"):
            if push.push_id in self.given_up:
                raise RegionFailed("given up")
            if push.push_id not in self.made:
                self.made[push.push_id] = max(self.versions) + 1
                self.versions.add(self.made[push.push_id])
        return Created(self.made[push.push_id], self.current)

    def start_followers(self, push: PushRecord) -> None:
        with self._asking("start_followers"):
            pass

    def written(self, push: PushRecord) -> bool:
        with self._asking("written"):
            return self.data_there

    def lagging_followers(self, push: PushRecord) -> Sequence[str]:
        with self._asking("lagging_followers"):
            return self.lagging

    def swap(self, push: PushRecord) -> int | None:
        with self._asking("swap"):
            version = self.made[push.push_id]
            if not push.region(self._name).swap_number:
                self._world.faults.append(f"{self._name} swaps before it was noted")
            if push.push_id in self.given_up:
                raise RegionFailed("given up")
            if self.current != version:
                self.before[push.push_id] = self.current
                self.current = version
                self._world.log.append(f"swap {self._name}")
        return self.before[push.push_id]

    def roll_back(self, push: PushRecord) -> bool:
        with self._asking("roll_back"):
            self.given_up.add(push.push_id)
            if push.push_id in self.before and self.current == self.made[push.push_id]:
                self.current = self.before[push.push_id]
                self._world.log.append(f"back {self._name}")
        return push.push_id in self.before

    def discard(self, push: PushRecord) -> bool:
        with self._asking("discard"):
            if push.push_id in self.made and self.current == self.made[push.push_id]:
                return False
            self.given_up.add(push.push_id)
        return True

    def previous(self, push: PushRecord) -> int | None:
        with self._asking("previous"):
            return self.before.get(push.push_id, self.current)

    def replaced(self, push: PushRecord) -> str:
        return ""

    def statistics(self, push: PushRecord) -> Comparison | None:
        with self._asking("statistics"):
            new = VersionStatistics(self.made.get(push.push_id, 0), 100, 1000, {"v": self.nulls})
            return Comparison(new, VersionStatistics(self.current, 100, 1000, {"v": 0}))


Script = Callable[[HookContext], Answer]


class ScriptedPanel:
    """Hooks that give scripted answers and record every call."""

    def __init__(self, *names: str, anew: Sequence[str] = ()) -> None:
        self._names = [HookName(name, name in anew) for name in names or ("hook",)]
        self.scripts: dict[tuple[str, str | None, str], list[Answer]] = {}
        self.script: Callable[[str, HookContext], Answer] = self._scripted
        self.calls: list[tuple[str, str | None, str, int]] = []
        self.contexts: list[HookContext] = []
        self.statistics = False
        self.moment: Callable[[], None] = lambda: None

    @property
    def names(self) -> Sequence[HookName]:
        return self._names

    def wants_statistics(self, hook: str) -> bool:
        return self.statistics

    def say(
        self, method: str, *answers: Answer, region: str | None = None, hook: str = "hook"
    ) -> None:
        """Let a hook give these answers to its next calls, then proceed."""
        self.scripts[method, region, hook] = list(answers)

    def call(self, hook: str, context: HookContext, queued_s: float = 0.0) -> Answer:
        self.calls.append((context.method, context.region, hook, context.call))
        self.contexts.append(context)
        self.moment()
        answer = self.script(hook, context)
        if answer.decision is not Decision.PROCEED:
            # The runner of real hooks turns an answer that a method may not give into a failure.
            assert answer.decision in METHODS[context.method].answers
        self.moment()
        return answer

    def _scripted(self, hook: str, context: HookContext) -> Answer:
        answers = self.scripts.get((context.method, context.region, hook))
        return answers.pop(0) if answers else PROCEED

    def methods(self, region: str | None = None) -> list[str]:
        """Return the methods called for a region, in order."""
        return [method for method, of, _, _ in self.calls if of == region]


class Life:
    """One controller over a world, step by step; a second one over the same store takes over."""

    def __init__(
        self, world: World, store: ObjectStore, panel: ScriptedPanel, rules: Rules | None = None
    ) -> None:
        self.world = world
        self.pushes = PushStore(store, ONCE)
        self.panel = panel
        self.rules = rules or Rules(patience=PATIENCE)
        self.driver: PushDriver | None = None
        self.lives = 0
        self.pending: list[Job] = []
        """Work that was begun and is not done yet."""
        self.on_job: Callable[[PushDriver, str, Job], None] = lambda driver, name, job: None
        """Receives each new job and the controller's name."""

    def begin(
        self, order: RegionOrder, push_id: str = "p1", params: dict[str, str] | None = None
    ) -> None:
        record = new_push(push_id, ("shop", "visits"), order, params or {}, self.world.now)
        self._drive(self.pushes.begin(record, self._name(), self.world.now))

    def resume(self, push_id: str = "p1") -> None:
        """Begin another life, which knows only what the store has."""
        self._drive(self.pushes.take_over(push_id, self._name(), self.world.now))

    def _name(self) -> str:
        self.lives += 1
        return f"controller-{self.lives}"

    def _drive(self, held: HeldPush) -> None:
        self.pending = []
        self.driver = PushDriver(held, self.world.regions, self.panel, self.rules, PACE)

    @property
    def record(self) -> PushRecord:
        assert self.driver is not None
        return self.driver.record

    def jobs(self) -> list[Job]:
        """Return the jobs that are due."""
        assert self.driver is not None
        jobs = self.driver.ready(self.world.now)
        for job in jobs:
            self.on_job(self.driver, f"controller-{self.lives}", job)
        return jobs

    def do(self, job: Job) -> None:
        """Do one job and record its result."""
        assert self.driver is not None
        self.driver.took(job, self.driver.do(job), self.world.now)
        assert self.world.faults == []

    def sleep(self) -> None:
        """Advance the clock until a job is due."""
        assert self.driver is not None
        self.world.now = max(
            self.world.now + timedelta(milliseconds=1), self.driver.next_at(self.world.now)
        )

    def run(self, until: Callable[[], bool] | None = None, steps: int = 5000) -> PushRecord:
        """Continue until the push is over, or until ``until`` is true."""
        for _ in range(steps):
            if until is not None and until():
                return self.record
            self.pending += self.jobs()
            if self.record.over or (until is not None and until()):
                return self.record
            if self.pending:
                self.do(self.pending.pop(0))
            else:
                self.sleep()
        raise AssertionError(f"no end in sight: {self.record}")


def in_order(*names: str) -> RegionOrder:
    """Return an order of one region after another."""
    return RegionOrder(names or ("a", "b", "c", "d"), "in_order")


def order_of(kind: Literal["at_once", "in_order", "target_first"]) -> RegionOrder:
    """Return four regions; ``b`` is the target if the order has one."""
    return RegionOrder(("a", "b", "c", "d"), kind, "b" if kind == "target_first" else None)


@contextmanager
def quick_store() -> Iterator[ObjectStore]:
    """Yield an empty store in memory, for tests without power cuts or other processes."""
    yield MemoryStore()
