"""Anything in any order: two controllers, one of them maybe deposed without knowing it yet.

What a region serves and what the record says of it must agree in the end, whatever was killed,
lost, away, paused or asked for on the way.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingester.lifecycle.answers import ABORT, PROCEED, ROLLBACK, WAIT, Answer
from ingester.lifecycle.contexts import HookContext
from ingester.lifecycle.driver import Job, PushDriver
from ingester.lifecycle.methods import METHODS
from ingester.lifecycle.orders import Order
from ingester.lifecycle.push_store import Deposed
from ingester.lifecycle.record import PushRecord
from ingester.lifecycle.status import PUSH_STEPS, REGION_STEPS, Status
from ingester.lifecycle.tasks import Action, ActionTask, Result, Rules
from tests.lifecycle.world import OLD, PATIENCE, Life, ScriptedPanel, World, quick_store

pytestmark = pytest.mark.slow
NAMES = ("a", "b", "c")
NEW = OLD + 1
WHICH = st.integers(0, 1)


class Machine(RuleBasedStateMachine):
    """A world with up to two controllers at work on one push."""

    @initialize(
        kind=st.sampled_from(["at_once", "in_order", "target_first"]),
        on_unreachable=st.sampled_from(["wait", "skip", "abort", "rollback"]),
        on_failure=st.sampled_from(["abort", "rollback"]),
        swaps=st.integers(0, 3),
    )
    def begin(self, kind: str, on_unreachable: str, on_failure: str, swaps: int) -> None:
        self.stack = ExitStack()
        self.world = World(NAMES)
        self.panel = ScriptedPanel("one", "two", anew=["two"])
        self.next_answers: list[Answer] = []
        self.panel.script = self._answer
        self.waits = on_unreachable == "wait"
        rules = Rules(
            patience=PATIENCE,
            on_unreachable=on_unreachable,  # type: ignore[arg-type]
            on_failure=on_failure,  # type: ignore[arg-type]
        )
        store = self.stack.enter_context(quick_store())
        self.life = Life(self.world, store, self.panel, rules)
        target = "b" if kind == "target_first" else None
        self.life.begin(Order(NAMES, kind, target))  # type: ignore[arg-type]
        assert self.life.driver is not None
        self.drivers: list[PushDriver] = [self.life.driver]
        self.jobs: list[list[Job]] = [[]]
        self.results: list[list[tuple[Job, Answer | Result]]] = [[]]
        self.last: PushRecord = self.life.record
        for _ in range(swaps):
            self.goes_on_until_a_swap_is_due(0)
            self.does_something(0, 0)

    def _answer(self, hook: str, context: HookContext) -> Answer:
        answer = self.next_answers.pop(0) if self.next_answers else PROCEED
        allowed = METHODS[context.method].answers
        return answer if answer.decision in allowed else PROCEED

    def _of(self, which: int) -> int:
        return which % len(self.drivers)

    def _drop(self, index: int) -> None:
        del self.drivers[index], self.jobs[index], self.results[index]

    @rule(answers=st.lists(st.sampled_from([PROCEED, PROCEED, WAIT, ABORT, ROLLBACK]), max_size=3))
    def hooks_will_say(self, answers: list[Answer]) -> None:
        self.next_answers = answers

    @rule(name=st.sampled_from(NAMES))
    def away_or_back(self, name: str) -> None:
        self.world.regions[name].away = not self.world.regions[name].away

    @rule(name=st.sampled_from(NAMES))
    def answers_get_lost(self, name: str) -> None:
        self.world.regions[name].lose_answers = 1

    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["swap", "create_version"]))
    def refuses(self, name: str, method: str) -> None:
        self.world.regions[name].refuses = {method}

    @rule(kind=st.sampled_from(["abort", "rollback"]))
    def somebody_asks(self, kind: str) -> None:
        self.life.pushes.request("p1", kind, "asked", self.world.now)  # type: ignore[arg-type]

    @rule()
    def another_takes_over(self) -> None:
        """The one before goes on, until it finds out."""
        if len(self.drivers) == 2:
            self._drop(0)
        self.life.resume()
        assert self.life.driver is not None
        self.drivers.append(self.life.driver)
        self.jobs.append([])
        self.results.append([])

    @precondition(lambda self: self.drivers)
    @rule(which=WHICH)
    def looks_what_is_due(self, which: int) -> None:
        index = self._of(which)
        try:
            self.jobs[index] += self.drivers[index].ready(self.world.now)
        except Deposed:
            # Its threads go on with what they had begun; nothing of it is kept.
            self.drivers[index].took = lambda *_: None  # type: ignore[method-assign]

    @precondition(lambda self: any(self.jobs))
    @rule(which=WHICH, at=st.integers(0, 5))
    def does_something(self, which: int, at: int) -> None:
        index = self._of(which)
        if self.jobs[index]:
            job = self.jobs[index].pop(at % len(self.jobs[index]))
            self.results[index].append((job, self.drivers[index].do(job)))

    @precondition(lambda self: any(self.results))
    @rule(which=WHICH, at=st.integers(0, 5))
    def keeps_a_result(self, which: int, at: int) -> None:
        index = self._of(which)
        if self.results[index]:
            job, result = self.results[index].pop(at % len(self.results[index]))
            try:
                self.drivers[index].took(job, result, self.world.now)
            except Deposed:
                self._drop(index)

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
        """The swap itself is left to other rules: it may come late, or its answer be lost."""
        for at in range(200):
            self.looks_what_is_due(which)
            jobs = self.jobs[self._of(which)]
            if any(isinstance(j.task, ActionTask) and j.task.action is Action.SWAP for j in jobs):
                jobs.sort(key=lambda job: getattr(job.task, "action", None) is not Action.SWAP)
                return
            if not jobs:
                self.time_passes(1)
            self.does_something(which, at)
            if any(self.results):
                self.keeps_a_result(which, at)
            if not self.drivers or self.life.pushes.newest("p1").record.over:
                return

    @rule(seconds=st.sampled_from([1, 10, 60, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @invariant()
    def every_step_is_a_legal_one(self) -> None:
        record = self.life.pushes.newest("p1").record
        assert _reaches(PUSH_STEPS, self.last.status, record.status)
        for before, after in zip(self.last.regions, record.regions, strict=True):
            assert _reaches(REGION_STEPS, before.status, after.status)
        self.last = record

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        with self.stack:
            self._end()

    def _end(self) -> None:
        for place in self.world.regions.values():
            place.away, place.lose_answers, place.refuses = False, 0, set()
        self.next_answers = []
        self.life.resume()
        record = self.life.run()
        assert "post_end_of_push_job" in [call[0] for call in self.panel.calls]
        # What a deposed controller had begun still happens, and must change nothing.
        for index, jobs in enumerate(self.jobs):
            for job in jobs:
                self.drivers[index].do(job)
        served = {name: region.current for name, region in self.world.regions.items()}
        for region in record.regions:
            if region.status is Status.SERVING:
                assert served[region.name] == NEW
            elif region.status in (Status.ROLLED_BACK, Status.ABORTED):
                assert served[region.name] == OLD
        if record.status is Status.SERVING:
            assert set(served.values()) == {NEW}
        if record.ending is not None and record.ending.kind == "rollback" and self.waits:
            assert set(served.values()) == {OLD}
        if record.status is Status.ROLLED_BACK:
            assert not any(r.status is Status.SERVING for r in record.regions)
        assert len(self.world.log) == len(set(self.world.log))


def _reaches(steps: object, before: Status, after: Status) -> bool:
    """Whether a status can become another one, over any number of steps."""
    assert isinstance(steps, dict)
    seen, todo = {before}, [before]
    while todo:
        for status in steps[todo.pop()] - seen:
            seen.add(status)
            todo.append(status)
    return after in seen


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40, deadline=None)
