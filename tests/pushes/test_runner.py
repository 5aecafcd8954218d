"""Calls of hooks: failures count as configured, none hangs, a table has one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ingester.cli.controller import HookMetrics
from ingester.pushes import PROCEED, Decision
from ingester.pushes.config import HookConfigError, HookSettings
from ingester.pushes.driver import PushDriver, utc_now
from ingester.pushes.hook_calls import HookTally
from ingester.pushes.hook_loading import load_hooks
from ingester.pushes.hook_runner import MOST_ABANDONED, HookFailure, HookRunner
from ingester.pushes.hooks import HookContext
from ingester.pushes.record import new_push
from ingester.pushes.states import Status
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import Rules
from persist.store import ObjectStore
from tests.pushes import some_hooks
from tests.pushes.test_driver import SOON
from tests.pushes.test_hooks import a_context
from tests.pushes.world import ONCE, World, in_order, order_of

HERE = "tests.pushes.some_hooks"
told: list[HookFailure] = []


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    some_hooks.let_go.clear()
    told.clear()
    some_hooks.most[:] = [0, 0]
    yield
    some_hooks.let_go.set()


def a_runner(*classes: str, **settings: object) -> HookRunner:
    names = tuple(f"{HERE}:{name}" for name in classes)
    of = HookSettings(classes=names, **settings)  # type: ignore[arg-type]
    return HookRunner(of, load_hooks(of), told.append)


def about(table: str, method: str = "pre_version_swap") -> HookContext:
    context = a_context(method)
    return msgspec.structs.replace(context, push=msgspec.structs.replace(context.push, table=table))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("text", "failed: pre_version_swap answered 'abort', which is not a Decision"),
        ("number", "17"),
        ("nothing", ""),
        ("error", "failed: ZeroDivisionError: division by zero"),
        ("unshown", "failed: pre_version_swap returned a Unshown, which is not an Answer"),
        ("raised", "failed: UnshownError: a UnshownError that cannot be shown"),
        ("no_unicode", r"file \udc80 \x1b[31m is bad"),
        ("long", "x" * 999 + "…"),
    ],
)
def test_whatever_a_hook_says_becomes_an_answer_that_can_be_kept(table: str, reason: str) -> None:
    answer = a_runner("SaysNonsense").call(f"{HERE}:SaysNonsense", about(table))
    assert answer.reason == reason
    assert answer.decision is (Decision.WAIT if table == "nothing" else Decision.ABORT)


def test_a_hook_gets_the_configuration_of_its_table_and_lives_for_one_call() -> None:
    runner = a_runner(
        "Gate", config={"gate.open": "no"}, tables={"shop/visits": {"gate.open": "yes"}}
    )
    some_hooks.made.clear()
    assert runner.call(f"{HERE}:Gate", about("visits")) == PROCEED
    assert runner.call(f"{HERE}:Gate", about("orders")).decision is Decision.WAIT
    assert len(some_hooks.made) == 2
    assert [name.name for name in runner.names] == [f"{HERE}:Gate"]


@pytest.mark.parametrize(
    ("method", "on_error", "counts_as"),
    [
        ("pre_version_swap", None, "abort"),
        ("post_version_swap", None, "proceed"),
        ("pre_version_swap", "proceed", "proceed"),
        ("post_version_swap", "abort", "abort"),
        ("pre_version_swap", "wait", "wait"),
        ("post_version_swap", "wait", "wait"),
    ],
)
def test_a_hook_that_raises_counts_as_the_setting_says(
    method: str, on_error: str | None, counts_as: str
) -> None:
    runner = a_runner("Raises", on_error=on_error)
    answer = runner.call(f"{HERE}:Raises", a_context(method))
    assert answer.decision.value == counts_as
    error = "ZeroDivisionError: oh" if method == "pre_version_swap" else "SystemExit: 3"
    assert answer.reason == f"failed: {error}"
    assert told == [
        HookFailure(f"{HERE}:Raises", method, "p1", "a", "failed", error, Decision(counts_as))
    ]


@pytest.mark.parametrize(
    ("method", "counts_as"),
    [("pre_start_of_push_job", "abort"), ("post_version_creation", "proceed")],
)
def test_a_failed_call_does_not_wait_where_its_method_may_not(method: str, counts_as: str) -> None:
    runner = a_runner("SaysWhatItMayNot", on_error="wait")
    answer = runner.call(f"{HERE}:SaysWhatItMayNot", a_context(method))
    assert answer.decision.value == counts_as


def test_a_failed_call_that_waits_is_repeated_until_it_succeeds(
    world: World, store: ObjectStore
) -> None:
    runner = a_runner("Recovers", on_error="wait", wait_interval=0.01)
    now = utc_now()
    record = new_push("p1", ("shop", "visits"), in_order("a"), {}, now)
    held = PushStore(store, ONCE).begin(record, "one", now)
    some_hooks.failures[:] = [3]
    rules = Rules(patience=HookSettings(wait_interval=0.01).patience)
    driver = PushDriver(held, world.regions, runner, rules, SOON)
    assert driver.run(threading.Event()).status is Status.SERVING
    (counts,) = [each for each in runner.statistics() if each.method == "post_version_swap"]
    assert counts.outcomes == {"failed": 3, "proceed": 1}


@pytest.mark.parametrize(
    ("method", "counts_as", "says"),
    [
        ("pre_start_of_push_job", "abort", "may answer abort, proceed, not wait"),
        ("post_version_creation", "proceed", "may answer nothing, not abort"),
        ("pre_version_swap", "abort", "returned None, which is not an Answer"),
        ("post_version_swap", "proceed", "returned True, which is not an Answer"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(method: str, counts_as: str, says: str) -> None:
    answer = a_runner("SaysWhatItMayNot").call(f"{HERE}:SaysWhatItMayNot", a_context(method))
    assert answer.decision.value == counts_as
    assert says in answer.reason


def test_a_hook_that_hangs_is_given_up_and_holds_no_place() -> None:
    runner = a_runner("Hangs", "Gate", timeout=0.05, threads=1, config={"gate.open": "yes"})
    answer = runner.call(f"{HERE}:Hangs", a_context())
    assert answer.decision is Decision.ABORT
    assert answer.reason == "timed out: no answer within 0.05 s"
    assert runner.call(f"{HERE}:Gate", a_context()) == PROCEED
    counts = {each.hook.split(":")[1]: each for each in runner.statistics()}
    assert counts["Hangs"].outcomes == {"timed_out": 1}
    assert counts["Hangs"].running_s >= 0.05
    assert counts["Gate"].outcomes == {"proceed": 1}


def test_calls_fail_at_once_while_too_many_have_not_come_back() -> None:
    runner = a_runner("Hangs", timeout=0.001)
    for _ in range(MOST_ABANDONED):
        runner.call(f"{HERE}:Hangs", a_context())
    answer = runner.call(f"{HERE}:Hangs", a_context())
    assert answer.reason == f"failed: RuntimeError: {MOST_ABANDONED} calls have not returned yet"
    some_hooks.let_go.set()
    deadline = time.monotonic() + 30
    while runner.call(f"{HERE}:Hangs", a_context()) != PROCEED:
        assert time.monotonic() < deadline


def test_of_a_table_one_hook_runs_at_a_time_and_of_all_so_many_as_the_setting_says() -> None:
    runner = a_runner("Meets", threads=2)
    tables = ["visits", "visits", "orders", "orders", "stock", "stock"]
    threads = [
        threading.Thread(target=runner.call, args=(f"{HERE}:Meets", about(table)), daemon=True)
        for table in tables
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert some_hooks.most[0] <= 2
    assert some_hooks.most[1] == 1
    (counts,) = runner.statistics()
    assert counts.calls == 6
    assert counts.queued_s > 0


def test_real_hooks_lead_a_push(world: World, store: ObjectStore) -> None:
    runner = a_runner("Gate", "Raises", on_error="proceed", config={"gate.open": "yes"})
    now = utc_now()
    record = new_push("p1", ("shop", "visits"), in_order(), {}, now)
    held = PushStore(store, ONCE).begin(record, "one", now)
    driver = PushDriver(held, world.regions, runner, Rules(), SOON)
    assert driver.run(threading.Event()).status is Status.SERVING
    failed = [(failure.method, failure.region) for failure in told]
    assert failed.count(("pre_version_swap", "d")) == 1
    assert len(failed) == 8


def test_what_was_counted_is_told_as_metrics() -> None:
    runner = a_runner("Gate", "Raises")
    registry = CollectorRegistry()
    registry.register(HookMetrics(runner))
    for _ in range(2):
        runner.call(f"{HERE}:Gate", a_context())
        runner.call(f"{HERE}:Raises", a_context())
    scraped = generate_latest(registry).decode()
    about = f'class="{HERE}:Gate",method="pre_version_swap"'
    assert f'ingester_hook_calls_total{{{about},outcome="wait"}} 2.0' in scraped
    assert f"ingester_hook_running_seconds_total{{{about}}} " in scraped
    assert f"ingester_hook_queued_seconds_total{{{about}}} " in scraped
    assert 'outcome="failed"} 2.0' in scraped
    for limit in ("0.01", "300.0", "+Inf"):
        about_limit = about.replace(",", f',le="{limit}",')
        assert f"ingester_hook_queue_time_seconds_bucket{{{about_limit}}} 2.0" in scraped
    assert f"ingester_hook_queue_time_seconds_count{{{about}}} 2.0" in scraped


def test_checks_of_the_configuration_are_counted() -> None:
    settings = HookSettings(
        classes=(f"{HERE}:Gate",),
        config={"gate.open": "no"},
        tables={"shop/visits": {"gate.open": "yes"}},
    )
    tally = HookTally()
    runner = HookRunner(settings, load_hooks(settings, tally), told.append, tally)
    runner.call(f"{HERE}:Gate", a_context())
    counts = {each.method: each.outcomes for each in runner.statistics()}
    assert counts == {"validate_hook_config": {"proceed": 2}, "pre_version_swap": {"proceed": 1}}
    for name, outcome in (("NeverValid", "timed_out"), ("ExitsWhenMade", "failed")):
        tally = HookTally()
        with pytest.raises(HookConfigError):
            load_hooks(HookSettings(classes=(f"{HERE}:{name}",), timeout=0.2), tally)
        assert [each.outcomes for each in tally.statistics()] == [{outcome: 1}]


def test_the_time_in_the_queue_has_a_distribution(world: World, store: ObjectStore) -> None:
    """Hooks of one push wait for each other; that counts, too."""
    runner = a_runner("Naps")
    now = utc_now()
    record = new_push("p1", ("shop", "visits"), order_of("at_once"), {}, now)
    held = PushStore(store, ONCE).begin(record, "one", now)
    driver = PushDriver(held, world.regions, runner, Rules(), SOON)
    assert driver.run(threading.Event()).status is Status.SERVING
    (times,) = [each for each in runner.queue_times() if each.method == "pre_version_creation"]
    (counts,) = [each for each in runner.statistics() if each.method == "pre_version_creation"]
    assert times.calls == 4
    assert times.up_to[0] < 4, "some have waited for others"
    assert list(times.up_to) == sorted(times.up_to)
    assert times.queued_s == counts.queued_s >= 0.1
