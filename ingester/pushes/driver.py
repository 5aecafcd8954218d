"""Leads one push: does what is due and saves each result, until the push is over.

    ready(now) ─▶ tasks, recorded first where needed ─▶ do(task) ─▶ took(task, result, now)
                                                        in threads

One thread owns the record (``ready``, ``took``), and each record is saved before anything acts on
it. At most one request is active in each region, and one for the push as a whole; a slow or
unreachable region delays no other. At most one hook of the push runs. A driver that is killed is
continued by any driver over the same store; one that is deposed stops with
:class:`ingester.pushes.store.Deposed`. Tried by tests/pushes/test_driver, test_killed_anywhere and
test_two_controllers.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from ingester.pushes.hooks import Answer, HookContext, readable
from ingester.pushes.outcomes import goes_back, region_answered
from ingester.pushes.record import HookName, PushRecord, hooks_left, new_round, with_event
from ingester.pushes.rollout import (
    PushRequestRefused,
    advanced,
    begun,
    context_of,
    due,
    hook_said,
    requested,
)
from ingester.pushes.states import PushStage
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
    RegionLook,
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

    def call(self, hook: str, context: HookContext, queued_s: float = 0.0) -> Answer:
        """Return the hook's answer; a failed call has one, too. Never raises.

        ``queued_s`` is the time that the call has waited for other hooks of the push.
        """
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


class _Round(NamedTuple):
    """A round of hooks in one step."""

    method: str
    step_at: datetime
    number: int

    @classmethod
    def of(cls, call: HookTask) -> _Round:
        return cls(call.method, call.step_at, call.round)


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
        self._looks: dict[str, tuple[_Round, RegionLook]] = {}
        """The look at each region for the round of hooks that is called about it."""
        self._queued_at: dict[Task, float] = {}
        """When each hook that waits for another one of the push became due."""
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
        startable = [each for each in self._startable(now) if each.at <= now]
        hook = self._next_hook(startable)
        for task in (each.task for each in startable):
            if isinstance(task, HookTask) and task != hook:
                self._queued_at.setdefault(task, time.monotonic())
                continue
            if isinstance(task, ActionTask) and not self._may(task, now):
                continue
            self._under_way.add(task)
            jobs.append(Job(task, self.record, now))
        return jobs

    def _next_hook(self, startable: Sequence[Due]) -> Task | None:
        """Return the hook to call now; None while another one runs.

        Hooks of a push are called one after another, as they became due, each with the newest
        record; a round that has begun is completed first. So what one region is allowed counts in
        the call for another, and an answer in flight is heard before the push ends.
        """
        if any(isinstance(task, HookTask) for task in self._under_way):
            return None
        hooks = [each for each in startable if isinstance(each.task, HookTask)]
        queue = list(self._queued_at)
        hooks.sort(key=lambda each: queue.index(each.task) if each.task in queue else len(queue))
        hooks.sort(key=lambda each: not each.amid)
        return hooks[0].task if hooks else None

    def next_at(self, now: datetime) -> datetime:
        """Return when :meth:`ready` next has something to do, unless a result comes earlier."""
        times = [each.at for each in self._startable(now) if each.at > now]
        return min([*times, self._ask_at])

    def do(self, job: Job) -> Answer | Result:
        """Do a task, in any thread, and return its result."""
        if isinstance(job.task, HookTask):
            return self._call(job.task, job)
        region = self._regions[job.task.region]
        if job.task.action is RegionAction.LOOK:
            return _result_of(lambda: self._look(region, job))
        return _result_of(lambda: _ask(region, job))

    def took(self, job: Job, result: Answer | Result, now: datetime) -> None:
        """Save the result of a task.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.store.HeldPush`.
        """
        self._under_way.discard(job.task)
        if isinstance(job.task, HookTask):
            self._queued_at.pop(job.task, None)
        self._not_before.pop(job.task, None)
        if isinstance(result, ActionUnreachable):
            self._not_before[job.task] = now + self._pace.retry
        elif isinstance(result, ActionDone) and isinstance(result.value, RegionLook):
            call = self._call_after(job)
            if call is not None:
                self._looks[job.task.region or ""] = _Round.of(call), result.value
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
        for at, named, amid in list(due(self.record, self._rules)):
            task = named
            if isinstance(task, HookTask) and task not in self._under_way:
                task = self._look_before(task)
            if task in self._under_way or task.region in asked:
                continue
            yield Due(self._due_at(max(at, self._not_before.get(task, at)), named, now), task, amid)

    def _look_before(self, task: HookTask) -> Task:
        """Return the request to a region that precedes a hook's call, or the call."""
        region = task.region
        if region is None or self._looks.get(region, (None,))[0] == _Round.of(task):
            return task
        if task.method == "pre_version_swap" or self._panel.wants_statistics(task.hook):
            return ActionTask(RegionAction.LOOK, region)
        return task

    def _call_after(self, look: Job) -> HookTask | None:
        """Return the call that a look at a region is made for."""
        for each in due(look.record, self._rules):
            if isinstance(each.task, HookTask) and each.task.region == look.task.region:
                return each.task
        return None

    def _due_at(self, at: datetime, task: Task, now: datetime) -> datetime:
        """When a task is due by this clock.

        A time further ahead than any pause comes from another clock, or from before this one was
        set back: the task is due now.
        """
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
                self._check_not_replaced(record, request.kind)
                record = requested(record, request.kind, request.reason, now)
            except PushRequestRefused as exc:
                record = with_event(record, None, f"request {record.requests} refused: {exc}", now)
        self._keep(record, now)

    def _check_not_replaced(self, record: PushRecord, kind: str) -> None:
        """Refuse to roll an ended push back in some regions while a later one is live in others.

        An unreachable region is not known to have been replaced: it is asked again by the rollback.
        """
        ended = record.stage in (PushStage.POST_END, PushStage.OVER)
        back = [region.name for region in record.regions if goes_back(region)]
        if kind != "rollback" or not ended or not back:
            return
        with ThreadPoolExecutor(len(back), thread_name_prefix="push-replaced") as pool:
            regions = [self._regions[name] for name in back]
            asks = [partial(each.replaced, record) for each in regions]
            answers = list(pool.map(_result_of, asks))
        for name, answer in zip(back, answers, strict=True):
            if isinstance(answer, ActionDone) and answer.value:
                why = f"in region {name}, {answer.value}"
                raise PushRequestRefused(f"nothing was rolled back: {why}")

    def _look(self, region: Region, job: Job) -> RegionLook:
        step = job.record.region(region.name).step
        assert step is not None
        left = hooks_left(step if step.next_at is None else new_round(step), self._rules.hooks)
        wanted = any(self._panel.wants_statistics(hook) for hook in left)
        statistics = region.statistics(job.record) if wanted else None
        return RegionLook(region.previous(job.record), statistics)

    def _call(self, task: HookTask, job: Job) -> Answer:
        statistics = None
        if task.region is not None and self._panel.wants_statistics(task.hook):
            statistics = self._looks[task.region][1].statistics
        context = context_of(job.record, task, self._rules, job.at, statistics)
        queued_at = self._queued_at.get(task)
        queued_s = 0.0 if queued_at is None else time.monotonic() - queued_at
        return self._panel.call(task.hook, context, queued_s)

    def _with(self, task: Task, result: Answer | Result, now: datetime) -> PushRecord:
        record, rules = self.record, self._rules
        if isinstance(task, HookTask):
            assert isinstance(result, Answer)
            return hook_said(record, task, result, rules, now)
        assert not isinstance(result, Answer)
        return advanced(region_answered(record, task, result, rules, now), rules, now)


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
