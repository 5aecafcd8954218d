"""Hooks of a step are called in order; the first abort or rollback wins, wait beats proceed.

Some cases are bugs of similar systems: a failing check did not count while another one was still
waiting (Argo Rollouts 1411), a check that timed out counted as good (1329), a check was never
run because the others finished first (1360).
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from ingester.pushes import ABORT, PROCEED, ROLLBACK, WAIT, Answer, Decision, abort, wait
from ingester.pushes.record import (
    HookName,
    HookStep,
    Patience,
    new_round,
    next_hook,
    with_answer,
)
from ingester.pushes.states import (
    PUSH_STEPS,
    REGION_STEPS,
    IllegalStep,
    Status,
    check_step,
    status_of_regions,
)
from persist.store import ObjectStore
from tests.pushes.world import BEGAN, PATIENCE, Life, ScriptedPanel, World, in_order

THREE = [HookName("one"), HookName("two"), HookName("three")]


def a_round(answers: dict[str, Answer]) -> tuple[list[str], HookStep, Answer | None]:
    """Return the hooks called in the first round, the step after it, and its outcome."""
    step = HookStep(method="pre_version_swap", began_at=BEGAN)
    called = []
    outcome = None
    while outcome is None and step.next_at is None:
        name = next_hook(step, THREE)
        assert name is not None
        called.append(name)
        step, outcome = with_answer(step, THREE, (name, answers[name]), PATIENCE, BEGAN)
    return called, step, outcome


@pytest.mark.parametrize(
    ("one", "two", "three", "called", "comes"),
    [
        (PROCEED, PROCEED, PROCEED, 3, Decision.PROCEED),
        (WAIT, PROCEED, PROCEED, 3, None),
        (PROCEED, PROCEED, WAIT, 3, None),
        (ABORT, ROLLBACK, PROCEED, 1, Decision.ABORT),
        (PROCEED, ROLLBACK, ABORT, 2, Decision.ROLLBACK),
        (WAIT, ABORT, ROLLBACK, 2, Decision.ABORT),
        (WAIT, WAIT, ROLLBACK, 3, Decision.ROLLBACK),
    ],
)
def test_the_first_abort_or_rollback_wins_over_waits_and_a_wait_over_proceeds(
    one: Answer, two: Answer, three: Answer, called: int, comes: Decision | None
) -> None:
    names, step, outcome = a_round({"one": one, "two": two, "three": three})
    assert names == ["one", "two", "three"][:called]
    assert (outcome.decision if outcome else None) == comes
    assert (step.next_at is not None) == (comes is None)


def test_the_outcome_names_the_hook_that_it_is_of() -> None:
    _, _, outcome = a_round({"one": WAIT, "two": abort("too large"), "three": PROCEED})
    assert outcome == Answer(Decision.ABORT, "two: too large")


def test_only_who_waited_and_who_asks_anew_is_called_again() -> None:
    hooks = [HookName("waits"), HookName("once"), HookName("anew", asks_anew=True)]
    step = HookStep(method="pre_version_swap", began_at=BEGAN)
    for name, answer in (("waits", WAIT), ("once", PROCEED), ("anew", PROCEED)):
        assert next_hook(step, hooks) == name
        step, outcome = with_answer(step, hooks, (name, answer), PATIENCE, BEGAN)
        assert outcome is None
    step = new_round(step)
    assert next_hook(step, hooks) == "waits"
    step, _ = with_answer(step, hooks, ("waits", PROCEED), PATIENCE, BEGAN)
    assert next_hook(step, hooks) == "anew"
    # Its answer of an hour ago no longer counts: it may stop the step now.
    _, outcome = with_answer(step, hooks, ("anew", abort("ill by now")), PATIENCE, BEGAN)
    assert outcome == Answer(Decision.ABORT, "anew: ill by now")


@pytest.mark.parametrize("on_deadline", list(Decision))
def test_a_wait_after_the_deadline_is_what_the_setting_says(on_deadline: Decision) -> None:
    if on_deadline is Decision.WAIT:
        return
    patience = Patience(timedelta(minutes=1), timedelta(minutes=2), on_deadline)
    hooks = [HookName("one")]
    step = HookStep(method="pre_version_swap", began_at=BEGAN)
    rounds = []
    outcome = None
    now = BEGAN
    while outcome is None:
        rounds.append(now)
        step, outcome = with_answer(step, hooks, ("one", wait("not yet")), patience, now)
        if step.next_at is not None and outcome is None:
            now = step.next_at
            step = new_round(step)
    assert [(at - BEGAN).total_seconds() for at in rounds] == [0, 60, 120]
    assert outcome.decision is on_deadline
    assert outcome.reason.endswith("one (not yet)")


def test_a_failing_check_stops_a_push_while_another_one_still_waits(
    world: World, store: ObjectStore
) -> None:
    panel = ScriptedPanel("delay", "metric")
    panel.say("pre_version_swap", *[WAIT] * 50, region="a", hook="delay")
    panel.say(
        "pre_version_swap", WAIT, PROCEED, region="a", hook="metric"
    )  # and it is not asked again
    panel.say("pre_version_swap", *[WAIT] * 3, region="b", hook="delay")
    panel.say("pre_version_swap", WAIT, abort("errors"), region="b", hook="metric")
    life = Life(world, store, panel)
    life.begin(in_order())
    assert life.run().status is Status.ABORTED
    assert world.log == ["swap a"]
    metric = [call for call in panel.calls if call[1:3] == ("a", "metric")]
    assert len([call for call in metric if call[0] == "pre_version_swap"]) == 2


def test_hooks_are_called_in_order_in_every_step(world: World, store: ObjectStore) -> None:
    panel = ScriptedPanel("one", "two", "three")
    life = Life(world, store, panel)
    life.begin(in_order("a"))
    assert life.run().status is Status.SERVING
    names = [hook for _, _, hook, _ in panel.calls]
    assert names == ["one", "two", "three"] * (len(names) // 3)


def test_no_status_follows_but_those_of_the_tables() -> None:
    way = ["STARTED", "WRITING", "COMPLETED", "WAITING", "SERVING", "ROLLED_BACK"]
    for before, after in pairwise(Status(name) for name in way):
        check_step(REGION_STEPS, before, after, "region a")
        check_step(PUSH_STEPS, before, after, "push p1")
    with pytest.raises(IllegalStep, match="region a: SERVING cannot follow COMPLETED"):
        check_step(REGION_STEPS, Status.COMPLETED, Status.SERVING, "region a")
    for steps in (REGION_STEPS, PUSH_STEPS):
        assert set(steps) == set(Status)
        assert steps[Status.ROLLED_BACK] == frozenset()
        assert all(before not in after for before, after in steps.items())


@pytest.mark.parametrize(
    ("regions", "push"),
    [
        ("STARTED STARTED", "STARTED"),
        ("WRITING STARTED", "WRITING"),
        ("COMPLETED STARTED", "WRITING"),
        ("COMPLETED WRITING", "WRITING"),
        ("COMPLETED COMPLETED", "COMPLETED"),
        ("COMPLETED FAILED", "COMPLETED"),
        ("WAITING STARTED", "WAITING"),
        ("SERVING COMPLETED", "WAITING"),
        ("FAILED STARTED", "STARTED"),
    ],
)
def test_a_push_stands_where_its_regions_stand(regions: str, push: str) -> None:
    assert status_of_regions(Status(name) for name in regions.split()) is Status(push)
