"""Random events in random order, with two controllers, one of them deposed without its knowledge.

A region's version and its record must agree in the end, whatever was killed, lost, unreachable,
paused or requested meanwhile. Each call, swap and rollback must be legal at its time
(`tests.pushes.judge`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingester.pushes.driver import Job, PushDriver
from ingester.pushes.hooks import (
    ABORT,
    METHODS,
    PROCEED,
    ROLLBACK,
    WAIT,
    Answer,
    Decision,
    HookContext,
)
from ingester.pushes.record import HookName, Patience, PushRecord
from ingester.pushes.rollout import due
from ingester.pushes.states import PUSH_STEPS, REGION_STEPS, PushStage, RegionOrder, Status
from ingester.pushes.store import Deposed
from ingester.pushes.tasks import ActionDone, ActionTask, HookTask, RegionAction, Result, Rules
from tests.pushes.judge import Judge
from tests.pushes.world import Life, ScriptedPanel, World, quick_store

pytestmark = pytest.mark.slow
NAMES = ("a", "b", "c")
WHICH = st.integers(0, 1)
MINUTE = timedelta(minutes=1)
ENDS = ["abort", "rollback"]
STUBBORN = [("pre_version_swap", "b"), ("post_version_swap", "a"), ("pre_end_of_push_job", None)]
RUNS: dict[tuple[str, str | None], float] = {
    ("everything", None): 0.8,
    ("hooks", None): 0.3,
    ("requests", None): 0.3,
    ("failures", None): 0.3,
    **{("away", then): 0.2 for then in ("wait", "skip", *ENDS)},
}
"""The faults of a run and the handling of an unreachable region, with the number of runs as a
multiple of other properties' examples. Many faults at once hide the effect of a single one."""
SOMETIMES = [None, None]
F = TypeVar("F", bound=Callable[..., object])


def theme(*names: str) -> Callable[[F], F]:
    """Restrict a rule to runs of these themes."""
    return precondition(lambda self: self.trouble in ("everything", *names))


@st.composite
def all_rules(draw: st.DrawFn) -> Rules:
    """Draw the rules of a push; each time limit is short, so that many are reached."""
    on_deadline = Decision(draw(st.sampled_from([*ENDS, "proceed"])))
    return Rules(
        hooks=(HookName("one"), HookName("two", asks_anew=True)),
        patience=Patience(MINUTE, 4 * MINUTE + timedelta(seconds=30), on_deadline),
        unreachable_after=2 * MINUTE,
        on_unreachable=draw(st.sampled_from(["wait", "skip", *ENDS])),
        followers_deadline=timedelta(seconds=15),
        on_followers=draw(st.sampled_from(["proceed", *ENDS])),
        on_failure=draw(st.sampled_from(ENDS)),
    )


class Machine(RuleBasedStateMachine):
    """A world with up to two controllers that lead one push."""

    trouble = "everything"
    on_unreachable: str | None = None

    @initialize(
        kind=st.sampled_from(["at_once", "in_order", "target_first"]),
        rules=all_rules(),
        swaps=st.integers(0, 3),
        more=st.tuples(
            st.sampled_from(["one", "two"]),
            st.sampled_from(["stays", "is undone", "is undone in the end"]),
            st.sampled_from([*SOMETIMES, *ENDS]),
        ),
        stubborn=st.sampled_from([*SOMETIMES, *SOMETIMES, *STUBBORN]),
        lags=st.sampled_from([*SOMETIMES, *NAMES]),
        stays_away=st.sampled_from([*SOMETIMES, *NAMES]),
    )
    def begin(
        self,
        kind: Any,
        rules: Rules,
        swaps: int,
        more: tuple[str, str, str | None],
        stubborn: tuple[str, str | None] | None,
        lags: str | None,
        stays_away: str | None,
    ) -> None:
        self.stack = ExitStack()
        self.world = World(NAMES)
        self.panel = ScriptedPanel("one", "two", anew=["two"])
        self.next_answers: list[Answer] = []
        self.panel.script = self._answer
        self.stubborn_hook, self.what_then, unheard = more
        self.stubborn = stubborn if self.trouble != "away" else None
        self.stays_away = stays_away if self.trouble == "everything" else None
        if self.trouble == "away":
            self.stays_away = stays_away or "b"
        lags = lags if self.trouble in ("everything", "failures") else None
        if self.on_unreachable is not None:
            rules = replace(rules, on_unreachable=self.on_unreachable)  # type: ignore[arg-type]
        self.how = rules
        store = self.stack.enter_context(quick_store())
        self.life = Life(self.world, store, self.panel, rules)
        self.judge = Judge(self.world, self.life.pushes, rules, "two")
        self.at_work = 1
        self.life.begin(RegionOrder(NAMES, kind, "b" if kind == "target_first" else None))
        assert self.life.driver is not None
        self.drivers: list[PushDriver] = [self.life.driver]
        self.lives = [1]
        self.deposed: set[int] = set()
        self.jobs: list[list[Job]] = [[]]
        self.results: list[list[tuple[Job, Answer | Result]]] = [[]]
        self.last: PushRecord = self.life.record
        if lags is not None:
            self.world.regions[lags].lagging = ("duck",)
            self.judge.troubled = True
        for _ in range(swaps):
            self.goes_on_until_a_swap_is_due(0)
            self.does_something(0, 0)
        if unheard is not None and self.trouble in ("everything", "requests"):
            self.a_swap_is_never_heard_of(0, unheard)
        if self.trouble == "away" and self.stays_away is not None:
            self.world.regions[self.stays_away].away = True
            self.judge.troubled = True

    def _answer(self, hook: str, context: HookContext) -> Answer:
        answer = self.next_answers.pop(0) if self.next_answers else PROCEED
        if (context.method, context.region, hook) == (
            *(self.stubborn or ("", "")),
            self.stubborn_hook,
        ):
            answer = WAIT
        allowed = METHODS[context.method].answers
        answer = answer if answer.decision in allowed else PROCEED
        self.judge.called(hook, context, answer.decision, self.at_work)
        return answer

    def _of(self, which: int) -> int:
        return which % len(self.drivers)

    def _drop(self, index: int) -> None:
        del self.drivers[index], self.jobs[index], self.results[index], self.lives[index]

    @theme("hooks")
    @rule(answers=st.lists(st.sampled_from([PROCEED, PROCEED, WAIT, ABORT, ROLLBACK]), max_size=3))
    def hooks_will_say(self, answers: list[Answer]) -> None:
        self.next_answers = answers

    @theme("away")
    @rule(name=st.sampled_from(NAMES))
    def away_or_back(self, name: str) -> None:
        self.world.regions[name].away = not self.world.regions[name].away
        self.judge.troubled = True

    @theme("away")
    @rule(name=st.sampled_from(NAMES))
    def answers_get_lost(self, name: str) -> None:
        self.world.regions[name].lose_answers = 1
        self.judge.troubled = True

    @theme("failures")
    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["swap", "create_version"]))
    def refuses(self, name: str, method: str) -> None:
        self.world.regions[name].refuses = {method}
        self.judge.troubled = True

    @rule(name=st.sampled_from(NAMES))
    def data_is_late(self, name: str) -> None:
        place = self.world.regions[name]
        place.data_there = "written" in place.asked and place.data_there

    @theme("requests")
    @rule(kind=st.sampled_from(ENDS))
    def somebody_asks(self, kind: str) -> None:
        self.life.pushes.request("p1", kind, "asked", self.world.now)  # type: ignore[arg-type]
        self.judge.troubled = True

    @theme("requests")
    @precondition(lambda self: self.drivers)
    @rule(which=WHICH, kind=st.sampled_from(ENDS))
    def somebody_asks_in_the_last_moment(self, which: int, kind: str) -> None:
        """No time passes between the request and the swap that must see it."""
        for at in range(60):
            self.looks_what_is_due(which)
            jobs = self.jobs[self._of(which)]
            tasks = [job.task for job in jobs if isinstance(job.task, ActionTask)]
            if any(task.action is RegionAction.CHECK_FOLLOWERS for task in tasks):
                self.somebody_asks(kind)
            elif not jobs:
                return
            self.does_something(which, at)
            if any(self.results):
                self.keeps_a_result(which, at)
            if not self.drivers:
                return

    @theme("requests")
    @precondition(lambda self: self.drivers)
    @rule(which=WHICH, kind=st.sampled_from(ENDS))
    def a_swap_is_never_heard_of(self, which: int, kind: str) -> None:
        """Its controller ends before it records the swap; a request then ends the push."""
        self.goes_on_until_a_swap_is_due(which)
        if self.drivers:
            self.does_something(which, 0)
        self.another_takes_over()
        self.somebody_asks(kind)

    @theme("away")
    @precondition(lambda self: self.drivers)
    @rule(which=WHICH)
    def a_region_goes_in_its_swap(self, which: int) -> None:
        """The region has swapped, its answer is lost, and it stays unreachable for long."""
        self.goes_on_until_a_swap_is_due(which)
        jobs = self.jobs[self._of(which)] if self.drivers else []
        if jobs and isinstance(task := jobs[0].task, ActionTask):
            self.answers_get_lost(task.region)
            self.does_something(which, 0)
            self.away_or_back(task.region)
            self.time_passes(600)

    @rule()
    def another_takes_over(self) -> None:
        """The previous controller continues until it finds out."""
        if len(self.drivers) == 2:
            self._drop(0)
        self.life.resume()
        assert self.life.driver is not None
        self.drivers.append(self.life.driver)
        self.lives.append(self.life.lives)
        self.jobs.append([])
        self.results.append([])

    @precondition(lambda self: self.drivers)
    @rule(which=WHICH)
    def looks_what_is_due(self, which: int) -> None:
        index = self._of(which)
        driver = self.drivers[index]
        try:
            jobs = driver.ready(self.world.now)
        except Deposed:
            # Its threads continue with work in progress; none of it is recorded.
            self.deposed.add(self.lives[index])
            return
        for job in jobs:
            self.judge.handed_out(driver, f"controller-{self.lives[index]}", job)
        self.jobs[index] += jobs

    @precondition(lambda self: any(self.jobs))
    @rule(which=WHICH, at=st.integers(0, 5))
    def does_something(self, which: int, at: int) -> None:
        index = self._of(which)
        if self.jobs[index]:
            job = self.jobs[index].pop(at % len(self.jobs[index]))
            self.at_work = self.lives[index]
            self.results[index].append((job, self.drivers[index].do(job)))

    @precondition(lambda self: any(self.results))
    @rule(which=WHICH, at=st.integers(0, 5))
    def keeps_a_result(self, which: int, at: int) -> None:
        index = self._of(which)
        if not self.results[index]:
            return
        job, result = self.results[index].pop(at % len(self.results[index]))
        driver = self.drivers[index]
        if self.lives[index] in self.deposed:
            return
        before = driver.record
        try:
            driver.took(job, result, self.world.now)
        except Deposed:
            self._drop(index)
            return
        _judge_answer(before, driver.record, job, result, self.how)

    @rule(which=WHICH, steps=st.integers(1, 30))
    def goes_on(self, which: int, steps: int) -> None:
        for at in range(steps):
            self.looks_what_is_due(which)
            if not any(self.jobs):
                self.time_passes(1)
            self.does_something(which, at)
            if any(self.results):
                self.keeps_a_result(which, at)
            if not self.drivers:
                return

    @precondition(lambda self: self.drivers)
    @rule(which=WHICH)
    def goes_on_until_a_swap_is_due(self, which: int) -> None:
        """Other rules make the swap itself: it may be late, or its answer lost."""
        for at in range(60):
            self.looks_what_is_due(which)
            jobs = self.jobs[self._of(which)]
            if any(
                isinstance(j.task, ActionTask) and j.task.action is RegionAction.SWAP for j in jobs
            ):
                jobs.sort(
                    key=lambda job: getattr(job.task, "action", None) is not RegionAction.SWAP
                )
                return
            if not jobs:
                self.time_passes(1)
            self.does_something(which, at)
            if any(self.results):
                self.keeps_a_result(which, at)
            if not self.drivers or self.drivers[self._of(which)].record.over:
                return

    @rule(seconds=st.sampled_from([1, 10, 60, 600]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @invariant()
    def every_step_is_a_legal_one(self) -> None:
        record = self.life.pushes.newest("p1").record
        assert _reaches(PUSH_STEPS, self.last.status, record.status)
        for before, after in zip(self.last.regions, record.regions, strict=True):
            assert _reaches(REGION_STEPS, before.status, after.status)
        assert self.world.faults == []
        self.last = record

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        with self.stack:
            self._end()

    def _end(self) -> None:
        for place in self.world.regions.values():
            place.away, place.lose_answers, place.refuses = False, 0, set()
            place.data_there = True
        if self.stays_away is not None and self.how.on_unreachable != "wait":
            self.world.regions[self.stays_away].away = True
            self.judge.troubled = True
        self.next_answers = []
        self.life.resume()
        self.at_work, self.judge.alone = self.life.lives, self.world.now
        self.life.on_job = self.judge.handed_out
        record = self.life.run(steps=1500)
        # The work in progress of a deposed controller still happens and must change nothing.
        for index, jobs in enumerate(self.jobs):
            for job in jobs:
                if isinstance(job.task, ActionTask):
                    self.drivers[index].do(job)
        self.judge.ended(record)
        for place in self.world.regions.values():
            place.away, place.lose_answers = False, 0
        if self.what_then != "stays":
            self._undo()
        assert self.world.faults == []
        assert len(self.world.log) == len(set(self.world.log))

    def _undo(self) -> None:
        """Undo the push after its end, while the region that swapped last is unreachable."""
        last = max(self.life.record.regions, key=lambda region: region.swap_number)
        place = self.world.regions[last.name]
        if self.what_then == "is undone in the end" and self.how.on_unreachable != "wait":
            place.away, self.judge.alone = True, self.world.now
            self.judge.judge_way_back_goes_on(self._rolled_back())
            place.away = False
        self.judge.undone(self._rolled_back())

    def _rolled_back(self) -> PushRecord:
        self.somebody_asks("rollback")
        self.life.resume()
        return self.life.run(steps=1500)


def _judge_answer(
    before: PushRecord, after: PushRecord, job: Job, result: Answer | Result, rules: Rules
) -> None:
    """An expected result takes effect: a swap is recorded, abort or rollback ends the push."""
    if isinstance(job.task, ActionTask) and job.task.action is RegionAction.SWAP:
        its = before.region(job.task.region)
        if isinstance(result, ActionDone) and its.status is Status.WAITING and its.swap_number:
            assert after.region(job.task.region).status is Status.SERVING
    if not (isinstance(job.task, HookTask) and isinstance(result, Answer)):
        return
    if result.decision is Decision.ROLLBACK and before.ending is not None:
        under_way = before.stage not in (PushStage.POST_END, PushStage.OVER)
        if under_way and job.task.step_at <= before.ending.at:
            assert after.ending is not None
            assert after.ending.kind == "rollback", "a rollback wins over an abort"
    if job.task not in [each.task for each in due(before, rules)]:
        return
    if result.decision in (Decision.ABORT, Decision.ROLLBACK):
        assert after.ending is not None
    if result.decision is Decision.ROLLBACK:
        assert after.ending is not None
        assert after.ending.kind == "rollback"


def _reaches(steps: object, before: Status, after: Status) -> bool:
    """Return whether a status can become another one, in any number of steps."""
    assert isinstance(steps, dict)
    seen, todo = {before}, [before]
    while todo:
        for status in steps[todo.pop()] - seen:
            seen.add(status)
            todo.append(status)
    return after in seen


@pytest.mark.parametrize(("trouble", "on_unreachable"), RUNS)
def test_whatever_happens_in_whatever_order(trouble: str, on_unreachable: str | None) -> None:
    kind = type("Run", (Machine,), {"trouble": trouble, "on_unreachable": on_unreachable})
    examples = int(settings().max_examples * RUNS[trouble, on_unreachable])
    run_state_machine_as_test(
        kind, settings=settings(stateful_step_count=40, deadline=None, max_examples=examples)
    )
