"""Leads one push: does what is due, keeps what came of it, until the push is over.

    ready(now) ─▶ tasks, written down where they have to be ─▶ do(task) ─▶ took(task, result, now)
                                                              in threads

Law of this file: one thread owns the record (``ready``, ``took``), and every record is kept before
anything is done by it. Each region has at most one thing asked of it at a time, and so has the push
as a whole; a region that is slow or away holds up nobody else. Killed anywhere, a driver over the
same store goes on; deposed, it stops with :class:`ingester.pushes.push_store.Deposed`.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

import msgspec

from ingester.pushes.answers import Answer, readable
from ingester.pushes.asking import HookName
from ingester.pushes.contexts import Comparison, HookContext
from ingester.pushes.outcomes import region_answered
from ingester.pushes.push_store import HeldPush
from ingester.pushes.record import PushRecord, noted
from ingester.pushes.regions import Region, RegionFailed, RegionUnreachable
from ingester.pushes.rollout import (
    RequestRefused,
    advanced,
    begun,
    context_of,
    due,
    hook_said,
    requested,
)
from ingester.pushes.tasks import (
    Action,
    ActionTask,
    Done,
    Due,
    Failed,
    HookTask,
    Result,
    Rules,
    Task,
    Unreachable,
)


class HookPanel(Protocol):
    """The hooks that are configured, as a driver calls them."""

    @property
    def names(self) -> Sequence[HookName]:
        """The hooks in their order."""
        ...

    def wants_statistics(self, hook: str) -> bool:
        """Return whether the hook is to be told the statistics of both versions."""
        ...

    def call(self, hook: str, context: HookContext) -> Answer:
        """Return what the hook answers; one that fails has an answer as well. Never raises."""
        ...


class Pace(NamedTuple):
    """How often something is asked again that has not come about yet."""

    poll: timedelta = timedelta(seconds=1)
    """Data and followers that are not there yet."""
    retry: timedelta = timedelta(seconds=5)
    """A region that could not be reached; requests are looked for as often."""


PACE = Pace()
_LOOK_S = 0.2
"""``stop`` is looked at this often: a command that leads has two seconds to end in order."""

Clock = Callable[[], datetime]
Hear = Callable[[PushRecord], None]


def utc_now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


class Job(NamedTuple):
    """A task with the record that it is done by, and the time at which it was due."""

    task: Task
    record: PushRecord
    at: datetime


class PushDriver:
    """Leads the push that ``held`` is, through regions by their names."""

    def __init__(
        self,
        held: HeldPush,
        regions: Mapping[str, Region],
        panel: HookPanel,
        rules: Rules,
        pace: Pace = PACE,
    ) -> None:
        missing = [name for name in held.record.order.regions if name not in regions]
        if missing:
            raise ValueError(f"push {held.record.push_id}: no region {', '.join(missing)} is known")
        self._held = held
        self._regions = regions
        self._panel = panel
        self._rules = dataclasses.replace(rules, hooks=tuple(panel.names))
        self._pace = pace
        self._under_way: set[Task] = set()
        self._not_before: dict[Task, datetime] = {}
        self._ask_at = held.record.began_at
        self.hear: Hear = _nobody
        """Called with each record that was kept, in the thread that owns the record."""

    @property
    def record(self) -> PushRecord:
        """The newest record that was kept."""
        return self._held.record

    def ready(self, now: datetime) -> list[Job]:
        """Return what is to be done now, each of it once until :meth:`took` has its result.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.push_store.HeldPush`.
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
        """Return when :meth:`ready` has something to do again, if no result comes before."""
        times = [at for at, _ in self._startable(now) if at > now]
        return min([*times, self._ask_at])

    def do(self, job: Job) -> Answer | Result:
        """Do a task, in any thread, and return what came of it."""
        if isinstance(job.task, HookTask):
            return self._call(job.task, job)
        region = self._regions[job.task.region]
        return _result_of(lambda: _ask(region, job))

    def took(self, job: Job, result: Answer | Result, now: datetime) -> None:
        """Keep what came of a task.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.push_store.HeldPush`.
        """
        self._under_way.discard(job.task)
        self._not_before.pop(job.task, None)
        if isinstance(result, Unreachable):
            self._not_before[job.task] = now + self._pace.retry
        elif isinstance(result, Done) and _not_yet(job.task, result):
            self._not_before[job.task] = now + self._pace.poll
        self._keep(self._with(job.task, result, now), now)

    def run(self, stop: threading.Event, clock: Clock = utc_now) -> PushRecord:
        """Lead the push until it is over, or ``stop`` is set; return the newest record.

        Tasks run in threads of their own, which a driver that stops leaves behind.

        Raises:
            Deposed, StoreError: see :class:`ingester.pushes.push_store.HeldPush`.
            Exception: a task has failed as none may: it would never be done again here.
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

        What is further ahead than any pause was told by another clock, or before this one was set
        back: it is due now.
        """
        at = max(at, self._not_before.get(task, at))
        pause = max(self._pace)
        if isinstance(task, HookTask):
            pause = max(pause, self._rules.patience.interval)
        return at if at - now <= pause else now

    def _may(self, task: ActionTask, now: datetime) -> bool:
        """Keep what has to be known before a region is asked to change something."""
        if not task.action.changes:
            return True
        if task.action is Action.SWAP:
            # Whoever has asked for an end before a swap began must not see it begin.
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
            except RequestRefused as exc:
                record = noted(record, None, f"request {record.requests} refused: {exc}", now)
        self._keep(record, now)

    def _call(self, task: HookTask, job: Job) -> Answer | Result:
        statistics = None
        if task.region is not None and self._panel.wants_statistics(task.hook):
            region = self._regions[task.region]
            compared = _result_of(lambda: region.statistics(job.record))
            if isinstance(compared, Unreachable):
                return compared
            if isinstance(compared, Done) and isinstance(compared.value, Comparison):
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
        compare = ActionTask(Action.COMPARE, task.region)
        return advanced(region_answered(record, compare, result, rules, now), rules, now)


def _nobody(record: PushRecord) -> None:
    pass


def _not_yet(task: Task, result: Done) -> bool:
    if not isinstance(task, ActionTask):
        return False
    if task.action is Action.CHECK_WRITTEN:
        return not result.value
    return task.action is Action.CHECK_FOLLOWERS and bool(result.value)


def _ask(region: Region, job: Job) -> object:
    assert isinstance(job.task, ActionTask)
    if job.task.action is Action.CHECK_FOLLOWERS:
        return tuple(region.lagging_followers(job.record))
    method: Callable[[PushRecord], object] = getattr(region, job.task.action.value)
    return method(job.record)


def _result_of(call: Callable[[], object]) -> Result:
    try:
        return Done(call())
    except RegionFailed as exc:
        return Failed(readable(exc) or "RegionFailed")
    except RegionUnreachable as exc:
        return Unreachable(readable(exc) or "it does not answer")
    except Exception as exc:
        # Whether it was done is unknown, which is what unreachable means.
        return Unreachable(f"{type(exc).__name__}: {readable(exc)}")
