"""Every method of a hook: its time, its arguments, and the effect of each answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from ingester.pushes import LifecycleHooks
from ingester.pushes.config import HookSettings
from ingester.pushes.hook_loading import LoadedHook
from ingester.pushes.hook_runner import HookFailure, HookRunner
from ingester.pushes.hooks import (
    METHODS,
    PROCEED,
    Decision,
    HookContext,
    HookMethod,
    abort,
    rollback,
    wait,
)
from ingester.pushes.rollout import REGION_HOOKS
from ingester.pushes.states import RegionOrder, Status
from persist.store import ObjectStore
from tests.pushes.world import OLD, Life, ScriptedPanel, World, in_order

NEW = OLD + 1
CALLED = [method for method in METHODS.values() if method.name != "validate_hook_config"]
MAY_STOP = [method for method in CALLED if Decision.ABORT in method.answers]
MAY_WAIT = [method for method in CALLED if Decision.WAIT in method.answers]
MAY_UNDO = [method for method in CALLED if Decision.ROLLBACK in method.answers]
NAMES = {method: method.name for method in CALLED}


class When(NamedTuple):
    """A call about region ``b`` of a and b, or about the push, and the progress until then."""

    push: str
    region: str | None
    done: str
    """The last request to region ``b``; for the push, to its first region."""


EXPECTED = {
    "validate_hook_params": When("STARTED", None, ""),
    "pre_start_of_push_job": When("STARTED", None, ""),
    "post_start_of_push_job": When("STARTED", None, ""),
    "pre_schema_registration": When("STARTED", None, ""),
    "post_schema_registration": When("STARTED", None, "register_schema"),
    "pre_version_creation": When("STARTED", "STARTED", ""),
    "post_version_creation": When("WRITING", "WRITING", "create_version"),
    "pre_start_of_version_ingestion_for_followers": When("WRITING", "WRITING", "create_version"),
    "post_start_of_version_ingestion_for_followers": When("WRITING", "WRITING", "start_followers"),
    "post_version_leader_replication": When("WAITING", "COMPLETED", "written"),
    "pre_version_swap": When("WAITING", "WAITING", "previous"),
    "post_version_swap": When("WAITING", "SERVING", "swap"),
    "pre_end_of_push_job": When("SERVING", None, "swap"),
    "post_end_of_push_job": When("SERVING", None, "swap"),
}


def by_name(method: HookMethod) -> str:
    return method.name


def where(method: HookMethod) -> str | None:
    return "b" if method.name in REGION_HOOKS.values() else None


@pytest.mark.parametrize("method", CALLED, ids=by_name)
def test_a_method_is_called_once_at_its_time_with_what_is_so_then(
    world: World, store: ObjectStore, method: HookMethod
) -> None:
    panel = ScriptedPanel("one", "two")
    seen: list[tuple[HookContext, str]] = []

    def script(hook: str, context: HookContext) -> Any:
        if (context.method, context.region) == (method.name, where(method)):
            asked = world.regions["b" if method.name in REGION_HOOKS.values() else "a"].asked
            seen.append((context, asked[-1] if asked else ""))
        return PROCEED

    panel.script = script
    life = Life(world, store, panel)
    life.begin(RegionOrder(("a", "b"), "in_order"), params={"ticket": "42"})
    assert life.run().status is Status.SERVING
    assert set(EXPECTED) == {each.name for each in CALLED}
    expected = EXPECTED[method.name]
    assert len(seen) == 2  # each hook once, in order
    context, done = seen[0]
    assert context.push.status.value == expected.push
    assert done == expected.done
    assert (context.call, context.first_called_at) == (1, context.now)
    assert context.push.params == {"ticket": "42"}
    assert [view.name for view in context.regions] == ["a", "b"]
    if expected.region is None:
        assert context.region is None
    else:
        view = context.view()
        assert view.status.value == expected.region
        made = method.name != "pre_version_creation"
        assert (view.table_version, view.previous) == ((NEW, OLD) if made else (None, None))


@pytest.mark.parametrize("method", MAY_STOP, ids=by_name)
def test_an_abort_stops_all_that_would_follow(
    world: World, store: ObjectStore, method: HookMethod
) -> None:
    panel = ScriptedPanel("one", "two")
    panel.say(method.name, abort("no"), region=where(method), hook="one")
    life = Life(world, store, panel)
    life.begin(RegionOrder(("a", "b", "c"), "in_order"))
    record = life.run()
    assert record.status is Status.ABORTED
    assert record.ending is not None
    assert record.ending.reason == f"{method.name}: one: no"
    called = [call[:3] for call in panel.calls]
    at = called.index((method.name, where(method), "one"))
    # Neither the step's second hook nor a later step is called; only the end is announced.
    # (Answers that other regions were already working on may still come.)
    later = [name for name, of, _ in called[at + 1 :] if of in (None, where(method))]
    assert set(later) <= {"pre_end_of_push_job", "post_end_of_push_job"}
    assert "post_end_of_push_job" in later
    served = {"post_version_swap": 2, "pre_version_swap": 1, "pre_end_of_push_job": 3}
    live = served.get(method.name, 0)
    assert world.current()[:3] == [NEW] * live + [OLD] * (3 - live)
    assert not any(line.startswith("back") for line in world.log)


@pytest.mark.parametrize("method", MAY_UNDO, ids=by_name)
def test_a_rollback_returns_what_has_swapped_and_is_an_abort_where_nothing_has(
    world: World, store: ObjectStore, method: HookMethod
) -> None:
    panel = ScriptedPanel()
    panel.say(method.name, rollback("bad"), region=where(method))
    life = Life(world, store, panel)
    life.begin(RegionOrder(("a", "b", "c"), "in_order"))
    record = life.run()
    back = {"post_version_swap": "ba", "pre_version_swap": "a", "pre_end_of_push_job": "cba"}
    expected = back.get(method.name, "")
    assert record.status is (Status.ROLLED_BACK if expected else Status.ABORTED)
    assert [line for line in world.log if line.startswith("back")] == [
        f"back {name}" for name in expected
    ]
    assert world.current() == [OLD] * 4


@pytest.mark.parametrize("method", MAY_WAIT, ids=by_name)
def test_a_wait_is_repeated_over_restarts_and_then_the_push_goes_on(
    world: World, store: ObjectStore, method: HookMethod
) -> None:
    panel = ScriptedPanel("one", "two")
    panel.say(method.name, *[wait("not yet")] * 3, region=where(method), hook="one")
    life = Life(world, store, panel)
    life.begin(RegionOrder(("a", "b"), "in_order"))

    def of_one() -> list[HookContext]:
        asked = zip(panel.calls, panel.contexts, strict=True)
        return [c for call, c in asked if call[:3] == (method.name, where(method), "one")]

    for number in (1, 2, 3):
        life.run(until=lambda number=number: len(of_one()) == number)  # type: ignore[misc]
        life.resume()
    assert life.run().status is Status.SERVING
    calls = of_one()
    assert [context.call for context in calls] == [1, 2, 3, 4]
    assert {context.deadline for context in calls} == {calls[0].deadline}
    assert {context.first_called_at for context in calls} == {calls[0].now}
    assert [context.now - calls[0].now for context in calls] == [
        timedelta(seconds=60 * at) for at in range(4)
    ]
    two = [call for call in panel.calls if call[:3] == (method.name, where(method), "two")]
    assert [call[3] for call in two] == [1]  # the hook has said proceed and is not called again


class FailsIn(LifecycleHooks):
    """Raises or hangs in the method that its configuration names."""

    def __getattribute__(self, name: str) -> Any:
        config: Mapping[str, str] = object.__getattribute__(self, "config")
        if name in METHODS and name == config.get("fail.in"):
            return self._hangs if config.get("fail.how") == "hang" else self._raises
        return object.__getattribute__(self, name)

    def __init__(self, config: Mapping[str, str]) -> None:
        object.__setattr__(self, "config", config)

    def _raises(self, context: HookContext) -> Any:
        raise ZeroDivisionError("oh")

    def _hangs(self, context: HookContext) -> Any:
        import threading

        threading.Event().wait(2)
        return PROCEED


@pytest.mark.parametrize(
    ("how", "on_error"), [("raise", None), ("hang", None), ("raise", "proceed"), ("raise", "abort")]
)
@pytest.mark.parametrize("method", CALLED, ids=by_name)
def test_a_failure_is_told_and_counts_as_the_setting_says(
    world: World, store: ObjectStore, method: HookMethod, how: str, on_error: str | None
) -> None:
    config = {"fail.in": method.name, "fail.how": how}
    settings = HookSettings(
        classes=("a:FailsIn",),
        timeout=0.03 if how == "hang" else 30.0,
        on_error=on_error,  # type: ignore[arg-type]
        config=config,
    )
    told: list[HookFailure] = []
    runner = HookRunner(settings, [LoadedHook("a:FailsIn", FailsIn)], told.append)
    life = Life(world, store, runner)  # type: ignore[arg-type]
    life.begin(in_order("a", "b"))
    record = life.run()
    first = told[0]
    assert (first.method, first.region) == (method.name, where(method) and "a")
    assert first.outcome == ("timed_out" if how == "hang" else "failed")
    default = "proceed" if method.name.startswith("post_") else "abort"
    assert first.counts_as.value == (on_error or default)
    last = method.name == "post_end_of_push_job"  # the push has ended by then
    stopped = first.counts_as is Decision.ABORT and not last
    assert record.status is (Status.ABORTED if stopped else Status.SERVING)
    assert record.over
    if stopped:
        assert record.ending is not None
        assert record.ending.reason.startswith(f"{method.name}: a:FailsIn: ")
    (counts,) = [each for each in runner.statistics() if each.method == method.name]
    assert counts.outcomes == {first.outcome: len(told)}
