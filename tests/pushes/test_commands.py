"""``ingester pushes`` and ``ingester controller`` over real regions, as users run them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ingester.pushes.driver import utc_now
from ingester.pushes.hooks import wait
from ingester.pushes.record import Patience, PushRecord
from ingester.pushes.states import Status
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import Rules
from tests.cli.conftest import check_refused, run_command
from tests.drivers.waiting import until
from tests.drivers.warm import Process, warm
from tests.pushes.realm import Job, in_folders, some_rows
from tests.pushes.world import ONCE, PATIENCE

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("a", "b", "c")
SITS = "tests.pushes.some_hooks:Sits"
Command = Callable[..., "subprocess.CompletedProcess[bytes]"]


class Place:
    """Three regions in folders, a configuration file, and a hook that blocks where a test asks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        impatient = PATIENCE._replace(interval=timedelta(milliseconds=10))
        self.realm = in_folders(path, NAMES)
        self.realm.rules = Rules(patience=Patience(*impatient))
        self.pushes = PushStore(self.realm.first, ONCE)
        self.config = path / "pushes.toml"
        self.sit = path / "sits"
        self.sit.mkdir()
        self.stop_at("")
        self.configure()

    def configure(self, **hook: str) -> None:
        regions = "".join(f'[regions.{name}]\nurl = "{self.path / name}"\n' for name in NAMES)
        keys = "".join(f'"sits.{key}" = "{value}"\n' for key, value in hook.items())
        self.config.write_text(
            f'{regions}[pushes]\norder = "in_order"\n[hooks]\nclasses = ["{SITS}"]\n'
            f'[hooks.config]\n"sits.folder" = "{self.sit}"\n{keys}'
        )

    def stop_at(self, call: str) -> None:
        (self.sit / "stop.new").write_text(call)
        (self.sit / "stop.new").rename(self.sit / "stop")

    def begin(self, push_id: str, rows: int = 100) -> PushRecord:
        """Begin a push that waits with its data everywhere and has no leader any more."""
        batch = some_rows(0, rows)
        self.realm.panel.say("pre_version_swap", *[wait("its driver")] * 1000, region="a")
        held = self.realm.begin(batch, push_id)
        job, stop = Job(self.realm, batch), threading.Event()

        def hear(record: PushRecord) -> None:
            job.hear(record)
            there = [each.status for each in record.regions]
            step = record.region("a").step
            if there[1:] == [Status.COMPLETED] * 2 and step is not None and step.asked:
                stop.set()

        return self.realm.lead(held, hear, stop=stop)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        return run_command(*arguments, "--config", self.config, cwd=self.path, PYTHONPATH=str(ROOT))

    def popen(self, *arguments: str) -> Process:
        with (self.path / "log").open("ab") as log:
            return warm().popen(
                ["ingester", *arguments, "--config", str(self.config)],
                {**os.environ, "PYTHONPATH": str(ROOT)},
                self.path,
                log,
            )

    @contextmanager
    def controller(self, *options: str) -> Iterator[Process]:
        """Run a controller; its log is in ``log`` of the folder."""
        process = self.popen("controller", *options)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def leader(self, push_id: str) -> Path:
        return self.path / "a" / "_pushes" / push_id / "leader"

    def is_over(self, push_id: str) -> bool:
        return self.pushes.newest(push_id).record.over

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.path / "log").read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode() + done.stderr.decode()


def test_a_push_is_led_to_its_end_shown_and_undone(place: Place) -> None:
    place.begin("p1")
    once = place.run("controller", "--once")
    assert once.returncode == 0, said(once)
    logged = [json.loads(line) for line in once.stderr.decode().splitlines()]
    changes = [(line["region"], line["what"]) for line in logged if line["event"] == "push changed"]
    assert [change for change in changes if change[1] == "SERVING"] == [
        *[(name, "SERVING") for name in NAMES],
        (None, "SERVING"),
    ]
    assert place.realm.states() == [(2, 100)] * 3
    # The commands show it as JSON and as tables.
    place.begin("p2", 50)
    listed = json.loads(place.run("pushes", "list", "--json").stdout)
    assert [push["push_id"] for push in listed["pushes"]] == ["p2", "p1"]
    assert [push["led"] for push in listed["pushes"]] == [False, False]
    table = place.run("pushes", "list").stdout.decode()
    assert re.search(
        r"p2 +shop.visits +WAITING .* a WAITING, b COMPLETED, c COMPLETED +nobody", table
    )
    shown = json.loads(place.run("pushes", "show", "p2", "--json").stdout)
    assert shown["regions"][0]["step"]["waits"] == [{"hook": "hook", "reason": "its driver"}]
    text = place.run("pushes", "show", "p1", "--events", "3").stdout.decode()
    assert re.search(r"b +SERVING .* v2 \(before: v1\)", text)
    assert text.count("SERVING") == 4 + 2  # each row, and two of the three events
    # Impossible requests are refused before anything is written.
    check_refused(
        place.run("pushes", "abort", "p1"), 1, "p1 has ended (SERVING); roll it back instead"
    )
    check_refused(place.run("pushes", "show", "p3"), 1, "has no push 'p3'; `ingester pushes list`")
    assert place.pushes.requests("p1") == []
    # This command itself undoes a finished push, as no controller leads it.
    back = place.run("pushes", "rollback", "p1", "--reason", "wrong day")
    assert back.returncode == 0, said(back)
    assert "it has no leader" in back.stderr.decode()
    assert "the push is led here, to its end" in back.stderr.decode()
    assert back.stdout.decode() == (
        "push p1 ended ROLLED_BACK (a ROLLED_BACK, b ROLLED_BACK, c ROLLED_BACK):"
        " rollback: wrong day\n"
    )
    assert place.realm.states() == [(1, 0)] * 3
    (request,) = json.loads(place.run("pushes", "show", "p1", "--json").stdout)["requests"]
    assert (request["kind"], request["taken_in"]) == ("rollback", True)
    check_refused(place.run("pushes", "rollback", "p1"), 1, "there is nothing to undo")
    # Long after its end no region keeps any object of it.
    for path in (place.path / "a" / "_pushes" / "p1").rglob("0*"):
        os.utime(path, (0, 0))
    assert all((place.path / name / "_push_status" / "p1").exists() for name in NAMES)
    pruned = place.run("controller", "--once")
    assert '"pushes": ["p1"]' in pruned.stderr.decode(), said(pruned)
    listed = json.loads(place.run("pushes", "list", "--json").stdout)
    assert [push["push_id"] for push in listed["pushes"]] == ["p2"]
    assert not any((place.path / name / "_push_status" / "p1").exists() for name in NAMES)


def test_a_request_is_kept_while_nobody_leads_and_heard_by_who_resumes(place: Place) -> None:
    place.begin("p1")
    asked = place.run("pushes", "abort", "p1", "--no-wait")
    assert asked.returncode == 0
    assert "it has no leader" in said(asked)
    assert not place.is_over("p1")
    resumed = place.run("pushes", "resume", "p1")
    assert resumed.returncode == 1
    assert "push p1 ended ABORTED (a ABORTED, b ABORTED, c ABORTED)" in said(resumed)
    place.begin("p2")
    resumed = place.run("pushes", "resume", "p2", "--json")
    assert resumed.returncode == 0, said(resumed)
    assert json.loads(resumed.stdout)["status"] == "SERVING"
    assert re.search(r"ingester: \d{4}-.* Z region b: SERVING", resumed.stderr.decode())
    counted = (
        r"ingester: hook \S+: pre_version_swap: 3 calls \(3 proceed\), \d+\.\d+ s in the queue"
    )
    assert re.search(counted, resumed.stderr.decode())
    assert place.run("pushes", "resume", "p2").returncode == 0  # the push has already ended well


def test_a_push_that_is_led_is_left_to_its_leader_unless_it_is_taken_over(place: Place) -> None:
    place.begin("p1")
    place.leader("p1").write_text('{"controller": "somebody", "at": "2026-11-26T08:00:00Z"}')
    check_refused(place.run("pushes", "resume", "p1"), 4, "push p1 is led by somebody, last")
    late = place.run("pushes", "abort", "p1", "--timeout", "200ms")
    assert late.returncode == 1
    assert "request 1; its leader is somebody" in said(late)
    assert "after 200ms: push p1 is WAITING" in said(late)
    assert "request 1 is still pending" in said(late)
    taken = place.run("pushes", "resume", "p1", "--take-over")
    assert taken.returncode == 1
    assert "ended ABORTED" in said(taken)


def test_a_signal_ends_who_leads_in_the_foreground_and_leaves_the_push_in_order(
    place: Place,
) -> None:
    place.stop_at("pre_version_swap.b")
    place.begin("p1")
    resumed = place.popen("pushes", "resume", "p1")
    until((place.sit / "pre_version_swap.b").exists, "the hook of b")
    assert place.leader("p1").exists()
    resumed.send_signal(signal.SIGINT)
    assert resumed.wait(30) == 130
    resumed.communicate()
    assert not place.leader("p1").exists()
    place.stop_at("")
    assert place.run("pushes", "resume", "p1").returncode == 0


def test_what_cannot_be_configured_is_refused_by_its_name(place: Place) -> None:
    good = place.config.read_text()
    for old, new, says in (
        ("in_order", "in_ordr", "pushes: Invalid enum value 'in_ordr' - at `$.order`"),
        ("some_hooks:Sits", "some_hooks:Sist", "tests.pushes.some_hooks has no 'Sist'"),
        ('"sits.folder"', '"sits.fodler"', "no hook knows sits.fodler"),
        (str(place.path / "a"), "ftp2://x/y", "regions.a"),
        ("[pushes]", "[pushs]", "unknown pushs"),
    ):
        place.config.write_text(good.replace(old, new))
        check_refused(place.run("controller"), 2, says)
    place.config.write_text(good)
    check_refused(
        place.run("controller", "--metrics", "here"), 2, "--metrics 'here' is not HOST:PORT"
    )
    everywhere = place.run("controller", "--metrics", "0.0.0.0:0")
    check_refused(everywhere, 2, "can be reached from other machines, without TLS and tokens")
    check_refused(place.run("pushes", "abort", "p1", "--timeout", "soon"), 2, "--timeout: not a")
    # An unmounted store is unreachable; it is not an empty store.
    (place.path / "a").rename(place.path / "unmounted")
    for command in (("pushes", "list"), ("pushes", "resume", "p1"), ("controller", "--once")):
        failed = place.run(*command)
        assert failed.returncode == 4
        assert "the folder of its store does not exist: file://" in said(failed)
    assert not (place.path / "a").exists()
    place.config.unlink()
    check_refused(place.run("pushes", "list"), 2, "pushes.toml: ")


def test_a_deferred_push_is_shown_and_released(place: Place) -> None:
    rows = some_rows(0, 100)
    held = place.realm.begin(rows, "p1", deferred=True)
    job, stop = Job(place.realm, rows), threading.Event()

    def hear(record: PushRecord) -> None:
        job.hear(record)
        if [each.status for each in record.regions] == [Status.COMPLETED] * 3:
            stop.set()

    place.realm.lead(held, hear, stop=stop)
    assert "deferred until `ingester pushes release`" in said(place.run("pushes", "show", "p1"))
    released = place.run("pushes", "release", "p1", "--reason", "tested")
    assert released.returncode == 0
    assert said(released) == (
        "ingester: push p1: release requested, as request 1; it has no leader\n"
        "ingester: a controller processes it, or `ingester pushes resume p1`\n"
    )
    assert place.run("pushes", "resume", "p1").returncode == 0
    assert place.realm.states() == [(2, 100)] * 3
    check_refused(place.run("pushes", "release", "p1"), 1, "push p1 has ended (SERVING)")
    check_refused(place.run("pushes", "release", "p2"), 1, "has no push 'p2'")


def test_a_hook_class_that_does_not_return_is_named_and_one_signal_is_enough(place: Place) -> None:
    good = place.config.read_text().replace("[hooks]", '[hooks]\ntimeout = "500ms"')
    for name, says in (
        ("NeverMade", "no answer within 0.5 s"),
        ("NeverValid", "no answer within 0.5 s"),
        ("ExitsWhenMade", "SystemExit: 0"),
        ("ExitsWhenChecked", "KeyboardInterrupt"),
    ):
        place.config.write_text(good.replace("some_hooks:Sits", f"some_hooks:{name}"))
        says = f"some_hooks:{name}: its constructor or validate_hook_config failed: {says}"
        check_refused(place.run("controller"), 2, says)
    (place.sit / "never_made").unlink()
    hangs = good.replace("some_hooks:Sits", "some_hooks:NeverMade").replace("500ms", "10m")
    place.config.write_text(hangs)
    with place.controller() as controller:
        until((place.sit / "never_made").exists, "the constructor")
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(10) == 0
    (line,) = place.log()
    assert (line["event"], line["why"]) == (
        "controller stopped",
        "a signal came while hooks were loaded",
    )


def test_two_controllers_lead_and_a_signal_ends_them(place: Place) -> None:
    place.stop_at("pre_version_swap.b")
    place.begin("p1")
    with ExitStack() as running:
        first = running.enter_context(place.controller("--metrics", "127.0.0.1:0"))
        until(lambda: (place.sit / "pre_version_swap.b").exists(), "the hook of b")
        # Two controllers that start at once may both take the push over, one after the other.
        second = running.enter_context(place.controller("--metrics", "127.0.0.1:0"))
        until(lambda: len(_started(place)) == 2, "both to start")
        urls = _started(place)
        scraped = [urllib.request.urlopen(url).read().decode() for url in urls]
        led = [re.findall(r"^ingester_pushes_led (\S+)", text, re.M) for text in scraped]
        assert sorted(led) == [["0.0"], ["1.0"]]
        calls = re.findall(r'ingester_hook_calls_total\{.*"pre_version_swap".*', "".join(scraped))
        assert len(calls) == 1
        ready = urls[0].replace("/metrics", "/health/ready")
        assert urllib.request.urlopen(ready).read() == b"ready\n"
        # The leader leaves the push in order, and the other controller takes it over at its next
        # scan.
        assert f"-{first.pid}-" in json.loads(place.leader("p1").read_text())["controller"]
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        watch = place.popen("pushes", "show", "p1", "--watch")
        assert watch.stdout is not None
        with watch.stdout as lines:
            shown = [lines.readline().decode()]
            place.stop_at("")
            until(lambda: place.is_over("p1"), "the end")
            shown += [line.decode() for line in lines]
        assert watch.wait(30) == 0
        assert [line for line in shown if "Z region c: SERVING" in line] != []
        assert shown[-1] == "push p1 ended SERVING (a SERVING, b SERVING, c SERVING)\n"
        assert place.pushes.newest("p1").record.status is Status.SERVING
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
    assert [line["event"] for line in place.log()].count("controller stopped") == 2
    assert place.realm.states() == [(2, 100)] * 3


def _started(place: Place) -> list[str]:
    return [str(line["metrics"]) for line in place.log() if line["event"] == "controller started"]


@pytest.mark.parametrize("bad", ["", "post_version_swap.c"])
def test_a_push_ends_as_it_would_have_though_its_leader_is_killed_in_every_state(
    place: Place, bad: str
) -> None:
    """Each controller is killed within a hook, and one also between steps."""
    place.configure(**({"bad": bad} if bad else {}))
    batch = some_rows(0, 100)
    place.realm.begin(batch, "p1")
    job = Job(place.realm, batch)
    seen: list[str] = []
    for call in (
        "pre_start_of_push_job",
        "post_schema_registration",
        "pre_version_creation.b",
        "post_version_creation.c",
        "post_version_leader_replication.a",
        "pre_version_swap.b",
        "post_version_swap.c",
        "pre_end_of_push_job",
        "post_end_of_push_job",
    ):
        place.stop_at(call)
        abandon(place, "p1")
        with place.controller() as process:
            if call.startswith("post_version_leader"):
                until(lambda: _all_made(place), "all versions")
                job.hear(place.pushes.newest("p1").record)
            until((place.sit / call).exists, call)
            record = place.pushes.newest("p1").record
            seen += [record.status.value, *(each.status.value for each in record.regions)]
            process.kill()
            assert process.wait(30) == -signal.SIGKILL
        place.stop_at("")
    abandon(place, "p1")
    ended = place.run("controller", "--once")
    assert ended.returncode == 0, said(ended)
    record = place.pushes.newest("p1").record
    assert record.status is (Status.ROLLED_BACK if bad else Status.SERVING)
    assert place.realm.states() == ([(1, 0)] * 3 if bad else [(2, 100)] * 3)
    assert {"STARTED", "WRITING", "COMPLETED", "WAITING", "SERVING"} <= set(seen)
    assert ("ROLLED_BACK" in seen) == bool(bad)
    assert len({line["controller"] for line in place.log() if line["event"] == "push led"}) == 9


def abandon(place: Place, push_id: str) -> None:
    """Let the half minute pass after which a silent leader counts as dead."""
    folder = place.leader(push_id).parent
    past = (utc_now() - timedelta(minutes=1)).timestamp()
    for path in (place.leader(push_id), max(folder.glob("0*"))):
        if path.exists():
            os.utime(path, (past, past))


def _all_made(place: Place) -> bool:
    return all(each.table_version for each in place.pushes.newest("p1").record.regions)
