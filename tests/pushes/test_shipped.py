"""Shipped hooks: delay, window, health, Prometheus, statistics, webhook, remote."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from ingester.pushes import (
    PROCEED,
    Answer,
    Comparison,
    Decision,
    LifecycleHooks,
    RegionView,
    Status,
    VersionStatistics,
    wait,
)
from ingester.pushes.config import HookConfigError, HookSettings
from ingester.pushes.driver import PushDriver, utc_now
from ingester.pushes.hook_loading import load_hook, load_hooks
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.hooks import HookContext
from ingester.pushes.record import new_push
from ingester.pushes.shipped import (
    HealthCheck,
    MinimumDelay,
    PrometheusCheck,
    Remote,
    StatisticsCheck,
    TimeWindow,
    Webhook,
)
from ingester.pushes.shipped.http_hooks import HttpEndpoint, NoAnswer
from ingester.pushes.states import RegionStage
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import Rules
from persist.store import ObjectStore
from tests.pushes.http_server import Answers, serving
from tests.pushes.test_driver import SOON
from tests.pushes.test_hooks import a_context
from tests.pushes.world import BEGAN, ONCE, Life, ScriptedPanel, World, in_order, order_of

AWAY = "http://127.0.0.1:1"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "pushes.md"
ROOM = "ingester.pushes.shipped"
ALL = {
    f"{ROOM}:MinimumDelay": {"minimum_delay.delay": "15m"},
    f"{ROOM}:TimeWindow": {"time_window.days": "mon-fri"},
    f"{ROOM}:HealthCheck": {"health.url": AWAY},
    f"{ROOM}:PrometheusCheck": {
        "prometheus.url": AWAY,
        "prometheus.query": "up",
        "prometheus.min": "1",
    },
    f"{ROOM}:StatisticsCheck": {},
    f"{ROOM}:Webhook": {"webhook.url": AWAY},
    f"{ROOM}:Remote": {"remote.url": AWAY},
}


@pytest.fixture
def server() -> Iterator[Answers]:
    with serving() as answers:
        yield answers


def after_swap(seconds: float = 0, **changes: Any) -> HookContext:
    now = BEGAN + timedelta(seconds=seconds)
    serving = RegionView("a", Status.SERVING, BEGAN, 2, 1)
    return a_context("post_version_swap", regions=(serving,), now=now, **changes)


def test_all_of_them_are_configured_at_once_and_are_on_the_page() -> None:
    config = {key: value for each in ALL.values() for key, value in each.items()}
    loaded = load_hooks(HookSettings(classes=tuple(ALL), config=config))
    told = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", PAGE.read_text()))
    for hook in loaded:
        assert f"`{hook.name.removeprefix(ROOM + ':')}`" in PAGE.read_text()
        assert hook.make.options is not None
        assert set(hook.make.options) <= told


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("MinimumDelay", {"minimum_delay.delay": "soon"}, "not a duration: 'soon'"),
        ("TimeWindow", {"time_window.zone": "Mars/Base"}, "'Mars/Base' is no known time zone"),
        ("TimeWindow", {"time_window.days": "mo"}, "time_window.days: 'mo' is not like"),
        ("TimeWindow", {"time_window.hours": "9-17"}, "'9-17' is not like 09:00-17:00"),
        ("TimeWindow", {"time_window.hours": "09:00-25:00"}, "an invalid time of day"),
        ("TimeWindow", {"time_window.hours": "09:00-09:00"}, "is empty"),
        ("HealthCheck", {"health.watch": "5m"}, "health.watch without effect: health.url is not"),
        ("HealthCheck", {"health.url": "ftp://x"}, "is not http:// or https://"),
        ("HealthCheck", {"health.url": AWAY, "health.after": "cry"}, "'cry' is none"),
        ("HealthCheck", {"health.url": AWAY, "health.tries": "0"}, "at least 1 is needed"),
        ("Webhook", {"webhook.timeout": "5s", "webhook.url": ""}, "webhook.timeout without effect"),
        ("PrometheusCheck", {"prometheus.url": AWAY}, "prometheus.query is not set"),
        (
            "PrometheusCheck",
            {"prometheus.url": AWAY, "prometheus.query": "up"},
            "neither prometheus.min nor prometheus.max is set",
        ),
        ("StatisticsCheck", {"statistics.row_loss": "-1"}, "'-1' is not a number"),
        ("Remote", {"remote.url": AWAY, "remote.methods": "swap"}, "'swap' is none of"),
        ("MinimumDelay", {"minimum_delay.dely": "1h"}, "no hook knows minimum_delay"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_key(
    name: str, config: dict[str, str], says: str
) -> None:
    with pytest.raises(HookConfigError) as refused:
        load_hooks(HookSettings(classes=(f"{ROOM}:{name}",), config=config))
    assert says in str(refused.value)


# ------------------------------------------------------------------------------------- by the clock


def test_a_delay_lies_between_the_swaps_of_all_regions(world: World, life: Life) -> None:
    panel = life.panel
    hook = MinimumDelay({"minimum_delay.delay": "10m"})
    panel.script = lambda name, context: (
        hook.pre_version_swap(context) if context.method == "pre_version_swap" else PROCEED
    )
    life.begin(in_order())
    life.run()
    times = [region.since for region in life.record.regions]
    assert [(at - times[0]).total_seconds() for at in times] == [0, 600, 1200, 1800]


@pytest.mark.parametrize("kind", ["at_once", "target_first", "in_order"])
@pytest.mark.parametrize("with_window", [False, True])
def test_a_delay_lies_between_swaps_in_every_order(
    world: World,
    store: ObjectStore,
    kind: Literal["at_once", "in_order", "target_first"],
    with_window: bool,
) -> None:
    """Regions that become ready together, or when a window opens, do not switch together."""
    config = {"minimum_delay.delay": "10m", "time_window.hours": "09:00-17:00"}
    hooks: dict[str, LifecycleHooks] = {"delay": MinimumDelay(config)}
    if with_window:
        hooks["window"] = TimeWindow(config)
    panel = ScriptedPanel(*hooks, anew=list(hooks))
    panel.script = lambda name, context: (
        hooks[name].pre_version_swap(context) if context.method == "pre_version_swap" else PROCEED
    )
    life = Life(world, store, panel)
    life.begin(order_of(kind))
    assert life.run().status is Status.SERVING
    times = sorted(region.since for region in life.record.regions)
    assert [(at - times[0]).total_seconds() for at in times] == [0, 600, 1200, 1800]
    assert (times[0] - BEGAN).total_seconds() == (3600 if with_window else 0)


@pytest.mark.parametrize("stuck", ["lagging", "away"])
def test_a_region_that_may_switch_and_has_not_yet_holds_the_others_back(
    world: World, life: Life, stuck: str
) -> None:
    hook = MinimumDelay({"minimum_delay.delay": "10m"})
    life.panel.script = lambda name, context: (
        hook.pre_version_swap(context) if context.method == "pre_version_swap" else PROCEED
    )
    life.rules = replace(life.rules, on_followers="wait", on_unreachable="wait")
    world.regions["a"].lagging = ("duck",)
    life.begin(order_of("at_once"))
    life.run(until=lambda: life.record.region("a").stage is RegionStage.FOLLOWERS)
    if stuck == "away":
        world.regions["a"].away = True
    life.run(until=lambda: world.now >= BEGAN + timedelta(minutes=20))
    assert world.log == []
    assert "region a is about to switch" in str(life.record.region("b").step)
    world.regions["a"].lagging, world.regions["a"].away = (), False
    life.resume()
    assert life.run().status is Status.SERVING
    times = [region.since for region in life.record.regions]
    assert [(at - times[0]).total_seconds() >= 600 * n for n, at in enumerate(times)] == [True] * 4
    assert world.log == ["swap a", "swap b", "swap c", "swap d"]


def test_a_region_that_another_hook_holds_does_not_hold_the_others(
    world: World, store: ObjectStore
) -> None:
    panel = ScriptedPanel("delay", "gate", anew=["delay"])
    hook = MinimumDelay({"minimum_delay.delay": "10m"})

    def answer(name: str, context: HookContext) -> Answer:
        if context.method != "pre_version_swap":
            return PROCEED
        if name == "delay":
            return hook.pre_version_swap(context)
        shut = context.region == "a" and context.now < BEGAN + timedelta(hours=5)
        return wait("shut") if shut else PROCEED

    panel.script = answer
    life = Life(world, store, panel)
    life.begin(order_of("at_once"))
    assert life.run().status is Status.SERVING
    assert world.log == ["swap b", "swap c", "swap d", "swap a"]


def test_real_threads_keep_the_delay_too(world: World, store: ObjectStore) -> None:
    settings = HookSettings(
        classes=(f"{ROOM}:MinimumDelay",),
        config={"minimum_delay.delay": "300ms"},
        wait_interval=0.02,
    )
    now = utc_now()
    push = new_push("p1", ("shop", "visits"), order_of("target_first"), {}, now)
    held = PushStore(store, ONCE).begin(push, "one", now)
    runner = HookRunner(settings, load_hooks(settings))
    rules = Rules(patience=settings.patience)
    record = PushDriver(held, world.regions, runner, rules, SOON).run(threading.Event())
    times = sorted(region.since for region in record.regions)
    assert record.status is Status.SERVING
    assert all(later - at >= timedelta(milliseconds=300) for at, later in pairwise(times))


BERLIN = {"time_window.zone": "Europe/Berlin"}
FRIDAY_NIGHT = {"time_window.hours": "22:00-04:00", "time_window.days": "fri"}


@pytest.mark.parametrize(
    ("config", "moment", "inside"),
    [
        ({"time_window.days": "mon-fri"}, "2026-11-26T00:00", True),  # a Thursday
        ({"time_window.days": "mon-fri"}, "2026-11-28T12:00", False),
        ({"time_window.days": "sat-mon"}, "2026-11-29T12:00", True),
        ({"time_window.days": "mon,thu"}, "2026-11-26T23:59", True),
        ({"time_window.hours": "09:00-17:00"}, "2026-11-26T09:00", True),
        ({"time_window.hours": "09:00-17:00"}, "2026-11-26T17:00", False),
        ({"time_window.hours": "09:00-17:00", **BERLIN}, "2026-11-26T08:00", True),
        ({"time_window.hours": "09:00-17:00", **BERLIN}, "2026-07-02T07:00", True),  # summer time
        ({"time_window.hours": "09:00-17:00", **BERLIN}, "2026-07-02T15:00", False),
        ({"time_window.hours": "23:00-00:00"}, "2026-11-26T23:30", True),
        ({"time_window.hours": "23:00-00:00"}, "2026-11-26T00:00", False),
        ({"time_window.hours": "22:00-04:00", "time_window.days": "fri"}, "2026-11-28T03:59", True),
        (
            {"time_window.hours": "22:00-04:00", "time_window.days": "fri"},
            "2026-11-27T03:59",
            False,
        ),
        ({}, "2026-11-29T23:59", True),
    ],
)
def test_a_window_is_one_of_its_zone_and_of_the_day_on_which_it_begins(
    config: dict[str, str], moment: str, inside: bool
) -> None:
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    answer = TimeWindow(config).pre_version_swap(a_context(now=now))
    assert answer.decision is (Decision.PROCEED if inside else Decision.WAIT)


def test_a_window_is_said_whole_where_it_is_waited_for() -> None:
    now = datetime(2026, 11, 26, 8, tzinfo=UTC)
    answer = TimeWindow({"time_window.hours": "11:00-14:00"}).pre_version_swap(a_context(now=now))
    assert answer.reason == "outside the window: mon-sun, 11:00-14:00 UTC"


# ------------------------------------------------------------------------------------------- health


def health(server: Answers, **config: str) -> HealthCheck:
    more = {f"health.{key}": value for key, value in config.items()}
    return HealthCheck(
        {"health.url": server.url + "/{region}/{table}", "health.pause": "0s"} | more
    )


def test_a_healthy_region_goes_on_and_is_watched_for_a_while(server: Answers) -> None:
    hook = health(server, watch="2m")
    assert hook.pre_version_swap(a_context()) == PROCEED
    assert hook.post_version_swap(after_swap(119)).decision is Decision.WAIT
    assert hook.post_version_swap(after_swap(120)) == PROCEED
    assert {asked.path for asked in server.asked} == {"/a/visits"}


def test_an_unhealthy_region_waits_before_its_swap_and_goes_back_after_it(server: Answers) -> None:
    server.answers = [(503, {})]
    hook = health(server)
    assert hook.pre_version_swap(a_context()).decision is Decision.WAIT
    answer = hook.post_version_swap(after_swap())
    assert answer.decision is Decision.ROLLBACK
    assert answer.reason == f"{server.url}/a/visits answered 503"
    assert len(server.asked) == 6
    stern = health(server, before="abort", after="abort")
    assert stern.pre_version_swap(a_context()).decision is Decision.ABORT
    assert stern.post_version_swap(after_swap()).decision is Decision.ABORT


def test_one_bad_answer_is_not_enough(server: Answers) -> None:
    server.answers = [(503, {}), (503, {}), (200, {})]
    assert health(server).pre_version_swap(a_context()) == PROCEED


def test_nobody_at_all_is_not_healthy() -> None:
    hook = HealthCheck({"health.url": AWAY, "health.pause": "0s", "health.tries": "1"})
    answer = hook.post_version_swap(after_swap())
    assert answer.decision is Decision.ROLLBACK
    assert AWAY in answer.reason


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [1700000000.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


SCALAR = {"resultType": "scalar", "result": [1.0, "0.5"]}


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, vector("0.5"), None),
        (
            200,
            {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "0.5"]}},
            None,
        ),
        (200, vector("0.05"), "is 0.05, below 0.1"),
        (200, vector("1.5"), "is 1.5, above 1"),
        (200, vector("NaN"), "is NaN"),
        (200, vector("+Inf"), "is inf, above 1"),
        (200, vector(), "the result has no values instead of one"),
        (200, vector("0.5", "0.5"), "the result has 2 values instead of one"),
        (200, b"<html>", "the answer is not the result of a query"),
        (
            200,
            {"status": "success", "data": {"resultType": "matrix", "result": [{}]}},
            "not the result",
        ),
        (422, {"status": "error"}, "the server answered 422"),
    ],
)
def test_a_query_is_healthy_by_one_value_within_its_bounds(
    server: Answers, status: int, body: object, says: str | None
) -> None:
    server.answers = [(status, body)]
    config = {
        "prometheus.url": server.url,
        "prometheus.query": 'errors{region="{region}"}',
        "prometheus.min": "0.1",
        "prometheus.max": "1",
        "prometheus.tries": "1",
    }
    answer = PrometheusCheck(config).pre_version_swap(a_context())
    assert answer.decision is (Decision.PROCEED if says is None else Decision.WAIT)
    assert (says or "") in answer.reason
    assert server.asked[0].path == "/api/v1/query?query=errors%7Bregion%3D%22a%22%7D"


# --------------------------------------------------------------------------------------- statistics


def version(rows: int, nbytes: int, **nulls: int | None) -> VersionStatistics:
    return VersionStatistics(1, rows, nbytes, nulls)


CURRENT = version(1000, 100_000, a=0, b=500)


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (version(1000, 100_000, a=0, b=500), None),
        (version(900, 100_000, a=0, b=450), None),
        (version(5000, 500_000, a=0, b=2500), None),
        (version(899, 90_000, a=0, b=450), "row count fell from 1,000 to 899 (limit: 900)"),
        (version(0, 0, a=0, b=0), "row count fell from 1,000 to 0 (limit: 900)"),
        (
            version(1000, 100_000, a=1000, b=500),
            "column 'a': share of nulls rose",
        ),
        (
            version(1000, 100_000, a=51, b=500),
            "nulls rose from 0.0% to 5.1% (limit: 5.0%)",
        ),
        (version(1000, 100_000, a=50, b=500), None),
        (version(1000, 100_000, a=0, b=500, c=1000), None),
        (version(1000, 100_000, a=0), "column 'b': share of nulls rose from 50.0% to 100.0%"),
        (
            version(1000, 100_000, a=None, b=500),
            "'a': the new generation has no count",
        ),
        (version(1000, 200_001, a=0, b=500), "bytes per row rose from 100 to 200 (limit: 200)"),
    ],
)
def test_a_version_that_differs_too_much_does_not_go_live(
    new: VersionStatistics, says: str | None
) -> None:
    answer = StatisticsCheck({}).pre_version_swap(a_context(statistics=Comparison(new, CURRENT)))
    assert answer.decision is (Decision.PROCEED if says is None else Decision.ABORT)
    assert (says or "") in answer.reason


def test_a_first_version_has_nothing_to_be_compared_to() -> None:
    first = a_context(statistics=Comparison(version(10, 100, a=10), None))
    assert StatisticsCheck({}).pre_version_swap(first) == PROCEED
    nothing = StatisticsCheck({"statistics.answer": "rollback"}).pre_version_swap(a_context())
    assert nothing == Answer(Decision.ROLLBACK, "the new generation has no statistics")


def test_statistics_stop_a_bad_push_before_the_second_region(
    world: World, life: Life, panel: ScriptedPanel
) -> None:
    """The column is null in the second region's data alone; the first region is rolled back."""
    world.regions["b"].nulls = 100
    panel.statistics = True
    hook: LifecycleHooks = StatisticsCheck({"statistics.answer": "rollback"})
    panel.script = lambda name, context: (
        hook.pre_version_swap(context) if context.method == "pre_version_swap" else PROCEED
    )
    life.begin(in_order())
    assert life.run().status is Status.ROLLED_BACK
    assert world.log == ["swap a", "back a"]
    assert life.record.ending is not None
    assert "column 'v': share of nulls rose from 0.0% to 100.0%" in life.record.ending.reason


# ------------------------------------------------------------------------------- webhook and remote


def test_a_webhook_is_told_of_what_was_done(server: Answers, life: Life) -> None:
    hook = Webhook({"webhook.url": server.url})
    life.panel.script = lambda name, context: getattr(hook, context.method)(context) or PROCEED
    life.begin(in_order("a"))
    life.run()
    assert [asked.body["event"] for asked in server.asked] == [
        "post_start_of_push_job",
        "post_schema_registration",
        "post_version_creation",
        "post_version_leader_replication",
        "post_version_swap",
        "post_end_of_push_job",
    ]
    assert server.asked[-1].body["context"]["push"]["status"] == "SERVING"
    assert server.asked[-1].key == "p1/post_end_of_push_job//SERVING"
    assert server.asked[2].key == "p1/post_version_creation/a"
    server.answers = [(500, {})]
    with pytest.raises(NoAnswer, match="answered 500"):
        hook.post_version_creation(a_context("post_version_creation"))


def remote(server: Answers, context: HookContext, **config: str) -> Answer:
    more: Mapping[str, str] = {f"remote.{key}": value for key, value in config.items()}
    return Remote({"remote.url": server.url, **more}).pre_version_swap(context)


def test_a_remote_hook_is_sent_the_question_once_and_asked_afterwards(server: Answers) -> None:
    server.answers = [(202, {}), (202, {}), (200, {"answer": "rollback", "reason": "no"})]
    assert remote(server, a_context()).decision is Decision.WAIT
    assert remote(server, a_context(call=2)).decision is Decision.WAIT
    assert remote(server, a_context(call=3)) == Answer(Decision.ROLLBACK, "no")
    assert [asked.method for asked in server.asked] == ["POST", "GET", "GET"]
    assert server.asked[0].body["context"]["push"]["params"] == {"ticket": "42"}
    assert server.asked[0].key == "p1/pre_version_swap/a"
    assert server.asked[1].path == "/?push_id=p1&method=pre_version_swap&region=a"


def test_a_remote_hook_that_has_forgotten_is_sent_the_question_again(server: Answers) -> None:
    server.answers = [(404, {}), (200, {"answer": "proceed"})]
    assert remote(server, a_context(call=2)) == PROCEED
    assert [asked.method for asked in server.asked] == ["GET", "POST"]


def test_a_remote_hook_that_is_away_is_waited_for(server: Answers) -> None:
    server.answers = [(503, {})]
    assert remote(server, a_context()).decision is Decision.WAIT
    with pytest.raises(NoAnswer):
        remote(server, a_context(), away="fail")
    assert remote(server, a_context(), url=AWAY).decision is Decision.WAIT


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, {}), (200, {"answer": "yes"}), (200, b"proceed"), (204, b""), (404, {}), (400, {})],
)
def test_nothing_but_an_answer_counts_as_one(server: Answers, status: int, body: object) -> None:
    server.answers = [(status, body)]
    with pytest.raises(ValueError, match=r"the remote hook (answered|said)"):
        remote(server, a_context())
    # After a switch a failed call would count as proceed, and leave a bad generation live.
    answer = after_swap_remote(server)
    assert answer.decision is Decision.WAIT
    assert re.match(r"the remote hook (answered|said)", answer.reason)


def after_swap_remote(server: Answers, **config: str) -> Answer:
    more = {f"remote.{key}": value for key, value in config.items()}
    hook = Remote({"remote.url": server.url, "remote.methods": "post_version_swap", **more})
    return hook.post_version_swap(after_swap())


@pytest.mark.parametrize("status", [401, 403, 407, 408, 425, 429, 500, 503])
def test_a_service_that_refuses_to_say_is_waited_for(server: Answers, status: int) -> None:
    server.answers = [(status, {"answer": "proceed"})]
    for answer in (remote(server, a_context()), after_swap_remote(server)):
        assert answer.decision is Decision.WAIT
        assert answer.reason == f"{server.url} answered {status}"
    with pytest.raises(NoAnswer):
        after_swap_remote(server, away="fail")


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (None, ""),
        ("", ""),
        (5, "5"),
        (["errors", 7], "['errors', 7]"),
        ({"rate": 0.5}, "{'rate': 0.5}"),
        ("x" * 5_000_000, "x" * 999 + "…"),
        ("ü \x1b[31m", "ü \\x1b[31m"),
    ],
)
def test_an_answer_counts_whatever_its_reason_is(
    server: Answers, reason: object, kept: str
) -> None:
    server.answers = [(200, {"answer": "rollback", "reason": reason, "more": [1]})]
    assert remote(server, a_context()) == Answer(Decision.ROLLBACK, kept)
    assert after_swap_remote(server) == Answer(Decision.ROLLBACK, kept)


@pytest.mark.parametrize("status", [200, 201, 202, 203])
@pytest.mark.parametrize("word", ["rollback", "ROLLBACK", " Rollback "])
def test_a_rollback_is_heard_however_it_is_written(server: Answers, status: int, word: str) -> None:
    server.answers = [(status, {"answer": word})]
    assert after_swap_remote(server) == Answer(Decision.ROLLBACK, "")


def test_an_answer_without_end_is_no_answer() -> None:
    """The time limit is for the whole answer, not for each of its bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def drip() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(65536)
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                with suppress(OSError):
                    while not over.wait(0.05):
                        taken.sendall(b" ")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        endpoint = HttpEndpoint(url, 0.3)
        with pytest.raises(NoAnswer, match=r"the answer did not end within 0\.3 s"):
            endpoint.get()
        over.set()
        thread.join(30)


def test_a_remote_hook_is_asked_in_its_methods_alone(server: Answers) -> None:
    hook = load_hook(f"{ROOM}:Remote").make({"remote.url": server.url})
    assert hook.post_version_swap(after_swap()) == PROCEED
    assert server.asked == []


# ------------------------------------------------------------------------------- for some tables


URLS = {name: key for name, config in ALL.items() for key in config if key.endswith(".url")}


@pytest.mark.parametrize("name", URLS)
def test_a_hook_with_a_url_is_enabled_for_one_table_alone(name: str, server: Answers) -> None:
    others = {key: value for key, value in ALL[name].items() if key != URLS[name]}
    settings = HookSettings(
        classes=(name,), config=others, tables={"shop/visits": {URLS[name]: server.url}}
    )
    runner = HookRunner(settings, load_hooks(settings))
    assert runner.not_enabled() == []
    method = "post_version_creation" if name.endswith("Webhook") else "pre_version_swap"
    context = a_context(method)
    push = msgspec.structs.replace(context.push, table="orders")
    assert runner.call(name, msgspec.structs.replace(context, push=push)) == PROCEED
    assert server.asked == []
    assert runner.statistics() == []
    runner.call(name, context)
    assert len(server.asked) >= 1
    assert len(runner.statistics()) == 1


@pytest.mark.parametrize("name", URLS)
def test_a_hook_with_a_url_does_nothing_by_default_and_is_disabled_for_a_table(name: str) -> None:
    settings = HookSettings(classes=(name,))
    runner = HookRunner(settings, load_hooks(settings))
    assert [each.name for each in runner.not_enabled()] == [name]
    assert runner.call(name, a_context()) == PROCEED
    settings = HookSettings(
        classes=(name,), config=ALL[name], tables={"shop/visits": {URLS[name]: ""}}
    )
    runner = HookRunner(settings, load_hooks(settings))
    assert runner.call(name, a_context()) == PROCEED
    assert runner.statistics() == []


def test_keys_of_a_table_that_enable_nothing_are_refused() -> None:
    settings = HookSettings(
        classes=(f"{ROOM}:HealthCheck",), tables={"shop/visits": {"health.watch": "5m"}}
    )
    with pytest.raises(HookConfigError) as refused:
        load_hooks(settings)
    assert str(refused.value) == (
        f'hooks.tables."shop/visits": {ROOM}:HealthCheck: health.watch without effect:'
        " health.url is not set"
    )
    for tables in ({"shop/visits": {"health.url": AWAY, "health.watch": "soon"}},):
        with pytest.raises(HookConfigError, match="not a duration: 'soon'"):
            load_hooks(HookSettings(classes=(f"{ROOM}:HealthCheck",), tables=tables))
