"""A push through four regions: orders, answers, rollbacks, unreachable and failing regions."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from ingester.pushes.driver import Job
from ingester.pushes.hooks import PROCEED as OK
from ingester.pushes.hooks import Answer, Decision, abort, rollback, wait
from ingester.pushes.record import HookName, new_push
from ingester.pushes.rollout import PushRequestRefused, hook_said, requested
from ingester.pushes.states import RegionOrder, Status
from ingester.pushes.tasks import HookTask, Rules
from tests.pushes.world import OLD, PATIENCE, Life, ScriptedPanel, World, in_order, order_of

NEW = OLD + 1


def statuses(life: Life) -> list[str]:
    return [region.status.value for region in life.record.regions]


def test_a_good_push_goes_live_in_the_given_order(life: Life, world: World) -> None:
    life.begin(in_order("c", "a", "d", "b"))
    assert life.run().status is Status.SERVING
    assert world.log == ["swap c", "swap a", "swap d", "swap b"]
    assert world.current() == [NEW] * 4
    assert life.record.ended_at == world.now


def test_each_region_hears_its_hooks_in_the_order_of_its_stages(
    life: Life, panel: ScriptedPanel
) -> None:
    life.begin(in_order())
    life.run()
    for region in "abcd":
        assert panel.methods(region) == [
            "pre_version_creation",
            "post_version_creation",
            "pre_start_of_version_ingestion_for_followers",
            "post_start_of_version_ingestion_for_followers",
            "post_version_leader_replication",
            "pre_version_swap",
            "post_version_swap",
        ]
    assert panel.methods() == [
        "validate_hook_params",
        "pre_start_of_push_job",
        "post_start_of_push_job",
        "pre_schema_registration",
        "post_schema_registration",
        "pre_end_of_push_job",
        "post_end_of_push_job",
    ]


def test_a_hook_sees_all_regions_with_the_times_of_their_last_changes(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("post_version_swap", wait("watching"), region="a")
    life.begin(in_order("a", "b"), params={"ticket": "42"})
    life.run()
    (context,) = [c for c in panel.contexts if (c.method, c.region) == ("pre_version_swap", "b")]
    assert context.push.params == {"ticket": "42"}
    assert context.view("a").status is Status.SERVING
    assert context.view("a").table_version == NEW
    assert context.view("a").previous == OLD
    assert context.view().status is Status.WAITING
    assert context.view().since - context.view("a").since == timedelta(seconds=60)
    ends = {c.method: c.push.status for c in panel.contexts if c.method.endswith("end_of_push_job")}
    assert ends == dict.fromkeys(ends, Status.SERVING)


@pytest.mark.parametrize(("after", "back"), [("a", "a"), ("b", "ba"), ("c", "cba"), ("d", "dcba")])
def test_a_rollback_returns_what_has_swapped_in_reverse_order(
    life: Life, world: World, panel: ScriptedPanel, after: str, back: str
) -> None:
    panel.say("post_version_swap", rollback("bad"), region=after)
    life.begin(in_order())
    assert life.run().status is Status.ROLLED_BACK
    assert [line for line in world.log if line.startswith("back")] == [f"back {n}" for n in back]
    assert world.current() == [OLD] * 4
    others = [region.status for region in life.record.regions if region.name not in back]
    assert set(others) <= {Status.ABORTED}


def test_a_rollback_after_the_target_returns_the_target_alone(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("post_version_swap", rollback("bad"), region="b")
    life.begin(order_of("target_first"))
    assert life.run().status is Status.ROLLED_BACK
    assert world.log == ["swap b", "back b"]


def test_the_target_goes_first_and_then_the_rest_at_once(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("post_version_swap", wait("watching"), region="b")
    life.begin(order_of("target_first"))
    life.run()
    assert world.log[0] == "swap b"
    since = {region.name: region.since for region in life.record.regions}
    assert since["a"] == since["c"] == since["d"] == since["b"] + timedelta(seconds=60)


@pytest.mark.parametrize("first", [abort("stop"), rollback("bad rows")])
def test_a_rollback_wins_over_an_abort_of_another_region(
    life: Life, world: World, panel: ScriptedPanel, first: Answer
) -> None:
    """Both regions are live, and both hooks are due: whichever is heard first, all go back."""
    second = rollback("bad rows") if first.decision is Decision.ABORT else abort("stop")
    panel.say("post_version_swap", wait("watching"), first, region="a")
    panel.say("post_version_swap", wait("watching"), second, region="b")
    life.begin(order_of("at_once"))
    assert life.run().status is Status.ROLLED_BACK
    assert world.current() == [OLD] * 4
    assert life.record.ending is not None
    assert life.record.ending.reason == "post_version_swap: hook: bad rows"


@pytest.mark.parametrize("method", ["pre_version_swap", "post_version_swap"])
@pytest.mark.parametrize("by", ["request", "failure"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_rollback_that_is_due_wins_over_an_abort(
    life: Life, world: World, panel: ScriptedPanel, method: str, by: str, killed: bool
) -> None:
    """The hook's call runs, or its controller is killed in it, while the push is aborted."""
    panel.say("post_version_swap", wait("watching"), region="a")
    panel.say(method, rollback("bad rows"), rollback("bad rows"), region="b")
    life.begin(RegionOrder(("a", "c", "b", "d"), "at_once"))
    world.regions["c"].data_there = False

    def in_flight() -> bool:
        tasks = [job.task for job in life.pending if isinstance(job.task, HookTask)]
        return NEW in world.current() and [task[:2] for task in tasks] == [(method, "b")]

    life.run(until=in_flight)
    (job,) = [job for job in life.pending if isinstance(job.task, HookTask)]
    life.pending.remove(job)
    assert life.driver is not None
    answer = life.driver.do(job)
    if by == "request":
        life.pushes.request("p1", "abort", "stop", world.now)
    else:
        world.regions["c"].refuses = {"written"}
    life.run(until=lambda: life.record.ending is not None, steps=100)
    if killed:
        life.resume()
    else:
        with pytest.raises(AssertionError, match="no end in sight"):
            life.run(steps=200)
        life.driver.took(job, answer, world.now)
    life.run()
    assert world.current() == [OLD] * 4
    assert life.record.ending is not None
    assert life.record.ending.kind == "rollback"
    assert life.record.ending.reason == f"{method}: hook: bad rows"


def test_a_rollback_of_a_later_hook_in_a_round_that_is_due_wins(world: World, store: Any) -> None:
    panel = ScriptedPanel("one", "two", anew=["two"])
    panel.say("post_version_swap", wait("watching"), abort("stop"), region="a", hook="one")
    panel.say("post_version_swap", wait("watching"), region="b", hook="one")
    panel.say("post_version_swap", OK, rollback("bad rows"), region="b", hook="two")
    life = Life(world, store, panel)
    life.begin(order_of("at_once"))
    assert life.run().status is Status.ROLLED_BACK
    assert ("post_version_swap", "a", "two", 2) not in panel.calls


@pytest.mark.parametrize("answer", [OK, wait("watching"), abort("stop too")])
def test_no_other_answer_undoes_an_abort(
    life: Life, world: World, panel: ScriptedPanel, answer: Answer
) -> None:
    panel.say("post_version_swap", wait("watching"), abort("stop"), region="a")
    panel.say("post_version_swap", wait("watching"), answer, rollback("too late"), region="b")
    life.begin(order_of("at_once"))
    assert life.run().status is Status.ABORTED
    assert panel.calls.count(("post_version_swap", "b", "hook", 2)) == 1
    assert ("post_version_swap", "b", "hook", 3) not in panel.calls
    assert world.current()[:2] == [NEW, NEW]


def test_an_abort_before_any_switch_calls_no_further_hook(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", abort("stop"), region="a")
    life.begin(order_of("at_once"))
    assert life.run().status is Status.ABORTED
    assert [call for call in panel.calls if call[0] == "pre_version_swap"] == [
        ("pre_version_swap", "a", "hook", 1)
    ]
    assert world.log == []


def test_an_abort_does_not_wait_for_hooks_that_are_no_longer_configured(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    life.begin(order_of("at_once"))
    life.run(until=lambda: "swap b" in world.log)
    life.pushes.request("p1", "abort", "stop", world.now)
    life.run(until=lambda: life.record.ending is not None)
    life.panel = ScriptedPanel("another")
    life.panel._names = []
    life.resume()
    assert life.run().status is Status.ABORTED


def test_at_once_no_region_waits_for_another(life: Life, world: World) -> None:
    world.regions["c"].data_there = False
    life.begin(order_of("at_once"))
    life.run(until=lambda: len(world.log) == 3)
    assert statuses(life).count("SERVING") >= 2
    world.regions["c"].data_there = True
    assert life.run().status is Status.SERVING


def test_an_abort_leaves_what_has_swapped_and_gives_up_the_rest(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", abort("too large"), region="c")
    life.begin(in_order())
    assert life.run().status is Status.ABORTED
    assert statuses(life) == ["SERVING", "SERVING", "ABORTED", "ABORTED"]
    assert world.current() == [NEW, NEW, OLD, OLD]
    assert life.record.ending is not None
    assert life.record.ending.reason == "pre_version_swap: hook: too large"
    assert panel.methods()[-1] == "post_end_of_push_job"
    assert panel.contexts[-1].push.status is Status.ABORTED


@pytest.mark.parametrize(
    "method", ["validate_hook_params", "pre_start_of_push_job", "pre_schema_registration"]
)
def test_an_abort_before_the_first_region_makes_no_version(
    life: Life, world: World, panel: ScriptedPanel, method: str
) -> None:
    panel.say(method, abort("no"))
    life.begin(in_order())
    assert life.run().status is Status.ABORTED
    assert [region.versions for region in world.regions.values()] == [{OLD}] * 4


def test_a_wait_asks_again_after_the_interval_and_counts_its_calls(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", *[wait("not yet")] * 3, region="a")
    life.begin(in_order("a"))
    life.run()
    calls = [c for c in panel.contexts if c.method == "pre_version_swap"]
    assert [c.call for c in calls] == [1, 2, 3, 4]
    gaps = {later.now - c.now for c, later in pairwise(calls)}
    assert gaps == {timedelta(seconds=60)}
    assert {c.first_called_at for c in calls} == {calls[0].now}


def test_a_wait_at_the_deadline_is_answered_as_the_setting_says(
    world: World, panel: ScriptedPanel, life: Life
) -> None:
    panel.script = lambda hook, context: (
        wait("for ever") if context.region == "b" and context.method == "pre_version_swap" else OK
    )
    patience = PATIENCE._replace(deadline=timedelta(minutes=5, seconds=30))
    life.rules = Rules(patience=patience)
    life.begin(in_order())
    assert life.run().status is Status.ABORTED
    assert statuses(life) == ["SERVING", "ABORTED", "ABORTED", "ABORTED"]
    last = [c for c in panel.contexts if c.method == "pre_version_swap"][-1]
    assert last.now == last.deadline
    assert life.record.ending is not None
    assert "was waited for since" in life.record.ending.reason
    assert "hook (for ever)" in life.record.ending.reason


def test_waits_and_their_deadline_survive_a_restart(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", *[wait("not yet")] * 5, region="a")
    life.begin(in_order("a"))
    life.run(until=lambda: len(panel.methods("a")) == 8)  # three calls of it
    first = panel.contexts[-1]
    assert first.call == 3
    life.resume()
    assert life.jobs() == []  # the pause continues and does not restart
    life.run(until=lambda: panel.contexts[-1].call == 4)
    assert panel.contexts[-1].now - first.now == timedelta(seconds=60)
    assert panel.contexts[-1].deadline == first.deadline
    assert life.run().status is Status.SERVING


def test_a_hook_is_asked_once_more_when_the_controller_was_down_over_the_deadline(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", wait("not yet"), region="a")
    life.begin(in_order("a"))
    life.run(until=lambda: "pre_version_swap" in panel.methods("a"))
    world.now += PATIENCE.deadline * 2
    life.resume()
    assert life.run().status is Status.SERVING


def test_a_region_that_is_away_holds_up_nobody_elses_own_steps(life: Life, world: World) -> None:
    world.regions["b"].away = True
    life.begin(in_order())
    life.run(until=lambda: life.record.region("d").status is Status.COMPLETED)
    life.run(until=lambda: life.record.region("a").status is Status.SERVING)
    assert life.record.region("c").status is Status.COMPLETED
    world.regions["b"].away = False
    assert life.run().status is Status.SERVING


@pytest.mark.parametrize(
    ("on_unreachable", "ends", "regions"),
    [
        ("skip", "FAILED", ["SERVING", "FAILED", "SERVING", "SERVING"]),
        ("abort", "FAILED", ["SERVING", "FAILED", "ABORTED", "ABORTED"]),
        ("rollback", "ROLLED_BACK", ["ROLLED_BACK", "FAILED", "ABORTED", "ABORTED"]),
    ],
)
def test_a_region_that_stays_away_is_handled_as_the_setting_says(
    life: Life, world: World, on_unreachable: str, ends: str, regions: list[str]
) -> None:
    life.rules = Rules(patience=PATIENCE, on_unreachable=on_unreachable)  # type: ignore[arg-type]
    world.regions["b"].away = True
    life.begin(in_order())
    record = life.run()
    assert (record.status.value, statuses(life)) == (ends, regions)
    assert "unreachable since" in record.region("b").reason


def test_a_region_that_is_waited_for_may_come_back_after_days(life: Life, world: World) -> None:
    life.rules = Rules(patience=PATIENCE, on_unreachable="wait")
    world.regions["b"].away = True
    life.begin(in_order())
    life.run(until=lambda: life.record.region("b").unreachable_since is not None)
    world.now += timedelta(days=3)
    life.run(until=lambda: life.record.region("d").status is Status.COMPLETED)
    assert life.record.region("b").status is Status.STARTED
    world.regions["b"].away = False
    assert life.run().status is Status.SERVING


def test_a_rollback_passes_by_a_region_that_is_away_and_says_so(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    def gone(hook: str, context: object) -> object:
        if (context.method, context.region) == ("post_version_swap", "c"):  # type: ignore[attr-defined]
            world.regions["b"].away = True
            return rollback("bad")
        return OK

    panel.script = gone  # type: ignore[assignment]
    life.begin(in_order())
    record = life.run()
    assert record.status is Status.FAILED
    assert statuses(life) == ["ROLLED_BACK", "FAILED", "ROLLED_BACK", "ABORTED"]
    assert world.current() == [OLD, NEW, OLD, OLD]
    assert record.region("b").reason.startswith("generation 2 is still live: unreachable since")
    # The region may still serve the version; a later request rolls it back, even if it comes early.
    life.pushes.request("p1", "rollback", "it is back", world.now)
    life.resume()
    life.run(until=lambda: life.record.region("b").unreachable_since is not None)
    assert not life.record.region("b").closed
    world.regions["b"].away = False
    assert life.run().status is Status.ROLLED_BACK
    assert world.current() == [OLD] * 4


def test_a_region_whose_way_back_fails_says_so_and_goes_back_when_that_is_mended(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    world.regions["b"].refuses.add("roll_back")
    panel.say("post_version_swap", rollback("bad"), region="c")
    life.begin(in_order())
    assert life.run().status is Status.FAILED
    assert statuses(life) == ["ROLLED_BACK", "FAILED", "ROLLED_BACK", "ABORTED"]
    assert world.current() == [OLD, NEW, OLD, OLD]
    says = "generation 2 is still live: roll_back: it was told to refuse; roll the push back again"
    assert life.record.region("b").reason.startswith(says)
    world.regions["b"].refuses.clear()
    life.pushes.request("p1", "rollback", "mended", world.now)
    life.resume()
    assert life.run().status is Status.ROLLED_BACK
    assert world.current() == [OLD] * 4
    assert life.record.region("b").reason == ""


def test_a_region_that_fails_for_good_ends_the_push(life: Life, world: World) -> None:
    world.regions["c"].refuses.add("swap")
    life.begin(in_order())
    assert life.run().status is Status.FAILED
    assert statuses(life) == ["SERVING", "SERVING", "FAILED", "ABORTED"]
    assert life.record.region("c").reason == "swap: it was told to refuse"


def test_a_failure_rolls_back_where_the_setting_says_so(life: Life, world: World) -> None:
    life.rules = Rules(patience=PATIENCE, on_failure="rollback")
    world.regions["c"].refuses.add("swap")
    life.begin(in_order())
    assert life.run().status is Status.ROLLED_BACK
    assert world.log == ["swap a", "swap b", "back b", "back a"]


def test_a_schema_that_is_refused_makes_no_version(life: Life, world: World) -> None:
    world.regions["a"].refuses.add("register_schema")
    life.begin(in_order())
    record = life.run()
    assert record.status is Status.FAILED
    assert record.ending is not None
    assert record.ending.reason == "schema: it was told to refuse"
    assert [region.versions for region in world.regions.values()] == [{OLD}] * 4


def test_a_swap_waits_for_the_regions_followers(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    world.regions["b"].lagging = ("duck-1", "duck-2")
    life.begin(in_order())
    life.run(until=lambda: life.record.region("b").lagging != ())
    assert "swap b" not in world.log
    assert life.record.region("b").lagging == ("duck-1", "duck-2")
    world.regions["b"].lagging = ()
    assert life.run().status is Status.SERVING


@pytest.mark.parametrize(
    ("on_followers", "ends"),
    [("proceed", "SERVING"), ("abort", "FAILED"), ("rollback", "ROLLED_BACK")],
)
def test_followers_that_never_confirm_are_handled_as_the_setting_says(
    life: Life, world: World, on_followers: str, ends: str
) -> None:
    life.rules = Rules(patience=PATIENCE, on_followers=on_followers)  # type: ignore[arg-type]
    world.regions["b"].lagging = ("duck-1",)
    life.begin(in_order())
    assert life.run().status.value == ends
    assert "swap b" in world.log or "duck-1" in str(life.record.ending)


def test_pre_end_may_undo_all_of_it(life: Life, world: World, panel: ScriptedPanel) -> None:
    panel.say("pre_end_of_push_job", wait("looking"), rollback("on second thoughts"))
    life.begin(in_order())
    assert life.run().status is Status.ROLLED_BACK
    assert world.log[-4:] == ["back d", "back c", "back b", "back a"]
    assert panel.methods()[-2:] == ["pre_end_of_push_job", "post_end_of_push_job"]


def test_somebody_may_give_a_push_up_and_undo_it_after_its_end(life: Life, world: World) -> None:
    life.begin(in_order())
    life.run(until=lambda: world.log == ["swap a", "swap b"])
    life.pushes.request("p1", "abort", "wrong day", world.now)
    assert life.run().status is Status.ABORTED
    assert world.current() == [NEW, NEW, OLD, OLD]
    life.pushes.request("p1", "rollback", "after all", world.now)
    life.resume()
    assert life.run().status is Status.ROLLED_BACK
    assert world.current() == [OLD] * 4
    with pytest.raises(PushRequestRefused, match="there is nothing to undo"):
        requested(life.record, "rollback", "again", world.now)


def test_a_hook_that_is_not_configured_any_more_is_not_waited_for(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.script = lambda hook, context: wait("for ever")
    life.begin(in_order("a"))
    panel.script = lambda hook, context: (
        wait("for ever") if context.method == "pre_version_swap" else OK
    )
    life.run(until=lambda: "pre_version_swap" in panel.methods("a"))
    life.panel = ScriptedPanel("another")
    life.resume()
    assert life.run().status is Status.SERVING


def test_an_answer_that_comes_twice_counts_once(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.say("pre_version_swap", wait("not yet"), region="a")
    life.begin(in_order("a"))
    life.run(until=lambda: any(_is_swap_question(job) for job in life.pending))
    (job,) = [job for job in life.pending if _is_swap_question(job)]
    assert isinstance(job.task, HookTask)
    rules = Rules(hooks=(HookName("hook"),), patience=PATIENCE)
    once = hook_said(life.record, job.task, wait("not yet"), rules, world.now)
    assert once != life.record
    for later in (timedelta(0), PATIENCE.interval):  # in the pause, and in the next round
        for answer in (wait("not yet"), abort("late"), OK):
            assert hook_said(once, job.task, answer, rules, world.now + later) == once


def _is_swap_question(job: Job) -> bool:
    return isinstance(job.task, HookTask) and job.task.method == "pre_version_swap"


def test_statistics_of_a_region_that_is_away_are_waited_for(
    life: Life, world: World, panel: ScriptedPanel
) -> None:
    panel.statistics = True
    life.begin(in_order())
    life.run(until=lambda: "swap a" in world.log)
    world.regions["a"].away = True
    life.run(until=lambda: life.record.region("a").unreachable_since is not None)
    world.regions["a"].away = False
    assert life.run().status is Status.SERVING
    told = [c.statistics for c in panel.contexts if c.method == "post_version_swap"]
    assert [s.new.table_version for s in told if s is not None] == [NEW] * 4


@pytest.mark.parametrize(
    ("regions", "kind", "target", "says"),
    [
        ((), "at_once", None, "at least one region"),
        (("a", "a"), "at_once", None, "a are named twice"),
        (("a",), "target_first", None, "go together"),
        (("a",), "target_first", "z", "'z' is none of a"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    regions: tuple[str, ...], kind: str, target: str | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        RegionOrder(regions, kind, target)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- deferred pushes


def deferred(life: Life, order: RegionOrder) -> None:
    now = life.world.now
    record = new_push("p1", ("shop", "visits"), order, {}, now, deferred=True)
    life._drive(life.pushes.begin(record, "controller-1", now))


@pytest.mark.parametrize("kind", ["at_once", "in_order", "target_first"])
def test_a_deferred_push_has_its_data_everywhere_and_goes_live_once_it_is_released(
    life: Life, world: World, panel: ScriptedPanel, kind: Any
) -> None:
    deferred(life, order_of(kind))
    life.run(until=lambda: world.now > life.record.began_at + timedelta(hours=3))
    assert statuses(life) == ["COMPLETED"] * 4
    assert life.record.status is Status.COMPLETED
    assert world.log == []
    assert "pre_version_swap" not in panel.methods("a")
    life.pushes.request("p1", "release", "tested", world.now)
    life.resume()
    assert life.run().status is Status.SERVING
    assert "released: tested" in [event.what for event in life.record.history]
    assert world.current() == [NEW] * 4


def test_a_deferred_push_can_be_aborted_and_is_then_not_released(life: Life, world: World) -> None:
    deferred(life, in_order())
    life.run(until=lambda: statuses(life) == ["COMPLETED"] * 4)
    life.pushes.request("p1", "abort", "not needed", world.now)
    life.pushes.request("p1", "release", "too late", world.now)
    assert life.run().status is Status.ABORTED
    assert world.log == []
    assert "request 2 refused: push p1 is being ended (abort: not needed)" in [
        event.what for event in life.record.history
    ]


def test_only_a_deferred_push_is_released_and_only_once(life: Life, world: World) -> None:
    life.begin(in_order("a"))
    with pytest.raises(PushRequestRefused, match="push p1 is not deferred"):
        requested(life.record, "release", "x", world.now)
    record = new_push("p2", ("shop", "visits"), in_order("a"), {}, world.now, deferred=True)
    released = requested(record, "release", "x", world.now)
    with pytest.raises(PushRequestRefused, match="push p2 is not deferred"):
        requested(released, "release", "x", world.now)
