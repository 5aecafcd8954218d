"""Leads one push: does what is due and saves each result, until the push is over.

    ready(now) ─▶ tasks, recorded first where needed ─▶ do(task) ─▶ took(task, result, now)
                                                        in threads

One thread owns the record (``ready``, ``took``), and each record is saved before anything acts on
it. At most one request is active in each region, and one for the push as a whole; a slow or
unreachable region delays no other. A driver that is killed is continued by any driver over the same
store; one that is deposed stops with :class:`ingester.pushes.store.Deposed`. Tried by
tests/pushes/test_driver, test_killed_anywhere and test_two_controllers.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

import msgspec

from ingester.pushes.hooks import Answer, Comparison, HookContext, readable
from ingester.pushes.outcomes import region_answered
from ingester.pushes.record import HookName, PushRecord, with_event
from ingester.pushes.rollout import (
    PushRequestRefused,
    advanced,
    begun,
    context_of,
    due,
    hook_said,
    requested,
)
from ingester.pushes.store import HeldPush
from ingester.pushes.tasks import (
    ActionDone,
    ActionFailed,
    ActionTask,
    ActionUnreachable,
    Due,
    HookTask,
    Region,
    RegionAction,
    RegionFailed,
    RegionUnreachable,
    Result,
    Rules,
    Task,
)


class HookPanel(Protocol):
    """The configured hooks, as a driver calls them."""

    @property
    def names(self) -> Sequence[HookName]:
        """The hooks, in the order of their calls."""
        ...

    def wants_statistics(self, hook: str) -> bool:
        """Return whether the hook receives the statistics of both generations."""
        ...

    def call(self, hook: str, context: HookContext) -> Answer:
        """Return the hook's answer; a failed call has one, too. Never raises."""
        ...


class DriverPace(NamedTuple):
    """How often a driver repeats a request."""

    poll: timedelta = timedelta(seconds=1)
    """The interval for missing data and lagging followers."""
    retry: timedelta = timedelta(seconds=5)
    """The interval for unreachable regions, and for requests to end the push."""


_LOOK_S = 0.2
"""The interval at which ``stop`` is checked: a command has two seconds to end in order."""

Clock = Callable[[], datetime]
Hear = Callable[[PushRecord], None]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Job(NamedTuple):
    """A task, the record it is based on, and the time at which it became due."""

    task: Task
    record: PushRecord
    at: datetime


class PushDriver:
    """Leads the push ``held`` through ``regions``, given by name."""

    def __init__(
        self,
        held: HeldPush,
        regions: Mapping[str, Region],
        panel: HookPanel,
        rules: Rules,
        pace: DriverPace = DriverPace(),  # noqa: B008 (frozen)
    ) -> None:
        missing = [name for name in held.record.order.regions if name not in regions]
        if missing:
            raise ValueError(
                f"push {held.record.push_id}: no region {', '.join(missing)} is configured"
            )
        self._held = held
        self._regions = regions
        self._panel = panel
        self._rules = dataclasses.replace(rules, hooks=tuple(panel.names))
        self._pace = pace
        self._under_way: set[Task] = set()
        self._not_before: dict[Task, datetime] = {}
        self._ask_at = held.record.began_at
        self.hear: Hear = lambda record: None
        """Called with each saved record, in the thread that owns the record."""

    @property
    def record(self) -> PushRecord:
        """The newest saved record."""
        return self._held.record

    def ready(self, now: datetime) -> list[Job]:
        """Return the tasks to do now, each once until :meth:`took` has its result.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.store.HeldPush`.
        """
        if now >= self._ask_at or self._ask_at - now > self._pace.retry:
            self._ask_at = now + self._pace.retry
            self._take_requests(now)
        self._keep(advanced(self.record, self._rules, now), now)
        jobs = []
        for at, task in self._startable(now):
            if at > now:
                continue
            if isinstance(task, ActionTask) and not self._may(task, now):
                continue
            self._under_way.add(task)
            jobs.append(Job(task, self.record, now))
        return jobs

    def next_at(self, now: datetime) -> datetime:
        """Return when :meth:`ready` next has something to do, unless a result comes earlier."""
        times = [at for at, _ in self._startable(now) if at > now]
        return min([*times, self._ask_at])

    def do(self, job: Job) -> Answer | Result:
        """Do a task, in any thread, and return its result."""
        if isinstance(job.task, HookTask):
            return self._call(job.task, job)
        region = self._regions[job.task.region]
        return _result_of(lambda: _ask(region, job))

    def took(self, job: Job, result: Answer | Result, now: datetime) -> None:
        """Save the result of a task.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.store.HeldPush`.
        """
        self._under_way.discard(job.task)
        self._not_before.pop(job.task, None)
        if isinstance(result, ActionUnreachable):
            self._not_before[job.task] = now + self._pace.retry
        elif isinstance(result, ActionDone) and _not_yet(job.task, result):
            self._not_before[job.task] = now + self._pace.poll
        self._keep(self._with(job.task, result, now), now)

    def run(self, stop: threading.Event, clock: Clock = utc_now) -> PushRecord:
        """Lead the push until it is over, or ``stop`` is set; return the newest record.

        Each task runs in a thread of its own; a stopped driver abandons running ones.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.store.HeldPush`.
            Exception: a task failed with a bug; it would never be repeated here.
        """
        results: queue.SimpleQueue[tuple[Job, Answer | Result | BaseException]]
        results = queue.SimpleQueue()

        def work(job: Job) -> None:
            try:
                results.put((job, self.do(job)))
            except BaseException as exc:
                results.put((job, exc))

        while not stop.is_set():
            jobs = self.ready(clock())
            if self.record.over:
                break
            for job in jobs:
                threading.Thread(target=work, args=(job,), daemon=True, name="push-task").start()
            now = clock()
            pause_s = min(max((self.next_at(now) - now).total_seconds(), 0), _LOOK_S)
            try:
                job, result = results.get(timeout=pause_s or 0.001)
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            self.took(job, result, clock())
        return self.record

    def _startable(self, now: datetime) -> Iterator[Due]:
        asked = {task.region for task in self._under_way if isinstance(task, ActionTask)}
        for at, task in list(due(self.record, self._rules)):
            if task in self._under_way or task.region in asked:
                continue
            yield Due(self._due_at(at, task, now), task)

    def _due_at(self, at: datetime, task: Task, now: datetime) -> datetime:
        """When a task is due by this clock.

        A time further ahead than any pause comes from another clock, or from before this one was
        set back: the task is due now.
        """
        at = max(at, self._not_before.get(task, at))
        pause = max(self._pace)
        if isinstance(task, HookTask):
            pause = max(pause, self._rules.patience.interval)
        return at if at - now <= pause else now

    def _may(self, task: ActionTask, now: datetime) -> bool:
        """Save what must be recorded before a region is asked to change something."""
        if not task.action.changes:
            return True
        if task.action is RegionAction.SWAP:
            # A request to end the push that precedes a swap prevents it.
            self._take_requests(now)
            if self.record.ending is not None:
                return False
        record = begun(self.record, task)
        if record == self.record:
            self._held.check()
        else:
            self._keep(record, now)
        return True

    def _keep(self, record: PushRecord, now: datetime) -> None:
        if record != self.record:
            self._held.save(record, now)
            self.hear(record)

    def _take_requests(self, now: datetime) -> None:
        record = self.record
        for request in self._held.requests():
            record = msgspec.structs.replace(record, requests=record.requests + 1)
            try:
                record = requested(record, request.kind, request.reason, now)
            except PushRequestRefused as exc:
                record = with_event(record, None, f"request {record.requests} refused: {exc}", now)
        self._keep(record, now)

    def _call(self, task: HookTask, job: Job) -> Answer | Result:
        statistics = None
        if task.region is not None and self._panel.wants_statistics(task.hook):
            region = self._regions[task.region]
            compared = _result_of(lambda: region.statistics(job.record))
            if isinstance(compared, ActionUnreachable):
                return compared
            if isinstance(compared, ActionDone) and isinstance(compared.value, Comparison):
                statistics = compared.value
        context = context_of(job.record, task, self._rules, job.at, statistics)
        return self._panel.call(task.hook, context)

    def _with(self, task: Task, result: Answer | Result, now: datetime) -> PushRecord:
        record, rules = self.record, self._rules
        if isinstance(task, ActionTask):
            assert not isinstance(result, Answer)
            return advanced(region_answered(record, task, result, rules, now), rules, now)
        if isinstance(result, Answer):
            return hook_said(record, task, result, rules, now)
        assert task.region is not None
        compare = ActionTask(RegionAction.COMPARE, task.region)
        return advanced(region_answered(record, compare, result, rules, now), rules, now)


def _not_yet(task: Task, result: ActionDone) -> bool:
    if not isinstance(task, ActionTask):
        return False
    if task.action is RegionAction.CHECK_WRITTEN:
        return not result.value
    return task.action is RegionAction.CHECK_FOLLOWERS and bool(result.value)


def _ask(region: Region, job: Job) -> object:
    assert isinstance(job.task, ActionTask)
    if job.task.action is RegionAction.CHECK_FOLLOWERS:
        return tuple(region.lagging_followers(job.record))
    method: Callable[[PushRecord], object] = getattr(region, job.task.action.value)
    return method(job.record)


def _result_of(call: Callable[[], object]) -> Result:
    try:
        return ActionDone(call())
    except RegionFailed as exc:
        return ActionFailed(readable(exc) or "RegionFailed")
    except RegionUnreachable as exc:
        return ActionUnreachable(readable(exc) or "it does not answer")
    except Exception as exc:
        # Whether it was done is unknown: that is what unreachable means.
        return ActionUnreachable(f"{type(exc).__name__}: {readable(exc)}")
