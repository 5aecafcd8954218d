"""``status --watch``: alarms first, last known values marked as old, the terminal restored."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ingester.cli.status_screen import DAEMONS, StatusLook, screen, sparks
from ingester.observability.status import Alarm
from tests.cli.conftest import ROOT, Run, check_refused
from tests.drivers.daemon import Daemon
from tests.server.http.serving import example_status

COMMAND = [sys.executable, "-m", "ingester", "status", "--watch", "0.3"]


def environment(daemon: Daemon) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "INGESTER_ENDPOINT": daemon.flight,
        "TERM": "xterm-256color",
    }


def drawn(look: StatusLook, width: int, now: float = 0.0) -> list[str]:
    """Return the lines of a screen of this width."""
    output = io.StringIO()
    console = Console(file=output, width=width, highlight=False, color_system=None)
    for each in screen(look, deque([1.0, 4.0, 8.0]), now, width):
        console.print(each)
    return output.getvalue().splitlines()


def status(**more: Any) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(example_status())
    return {**told, **more}


def test_alarms_come_first_and_lines_fit_a_narrow_terminal() -> None:
    told = {"severity": "critical", "since": "2026-11-26T08:10:00Z", "runbook": "store-away"}
    evil = msgspec.convert(told | {"name": "store-away", "message": "\x1b[2Jgone\u202e"}, Alarm)
    reasons = [{"code": "memory", "message": "over the high watermark"}]
    admission = status()["admission"] | {"accepts_writes": False, "reasons": reasons}
    look = StatusLook(status(alarms=[msgspec.to_builtins(evil)], admission=admission), 100.0, "")
    lines = drawn(look, 44)
    assert all(len(line) <= 44 for line in lines)
    text = " ".join(" ".join(lines).split())
    assert r"CRITICAL store-away since 2026-11-26T08:10:00Z: \x1b[2Jgone\u202e" in text
    assert text.index("pod-0: ready") < text.index("CRITICAL") < text.index("writes are refused")
    assert text.index("writes are refused: memory") < text.index("1,200,000/s ▂▅█")
    assert "no alarms" not in text
    assert "no alarms" in " ".join(drawn(StatusLook(status(), 100.0, ""), 80))


def test_outdated_figures_are_marked_and_unknown_fields_ignored() -> None:
    text = " ".join(drawn(StatusLook(status(), 100.0, "connection refused"), 120, now=112.0))
    assert "Unreachable for 12 s; showing last known values: connection refused" in text
    for name in ("alarms", "disk", "store_state", "oldest_unpersisted_s"):
        older = status()
        del older[name]
        assert "sensors/readings" in " ".join(drawn(StatusLook(older, 100.0, ""), 120))
    assert sparks(deque([0.0, 0.0])) == "▁▁"


def test_each_of_several_daemons_has_a_line_and_its_alarms_above() -> None:
    alarm = {"name": "disk-full", "severity": "critical", "since": "-", "runbook": "disk-full"}
    away = {"endpoint": "grpc://b:1", "error": {"code": "unreachable", "message": "no route"}}
    ill = {"endpoint": "grpc://a:1", "status": status(alarms=[{**alarm, "message": "full"}])}
    text = " ".join(drawn(StatusLook({DAEMONS: [ill, away]}, 100.0, ""), 160))
    assert text.index("2 daemons, 1 unreachable") < text.index("CRITICAL disk-full")
    assert text.index("Unreachable: grpc://b:1: no route") < text.index("rows per s")
    assert "no answer: unreachable" in text


def test_a_stopped_daemon_is_shown_and_the_terminal_is_restored(
    tmp_path: Path,
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 30
        while text not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen):
            assert time.monotonic() < end, seen[-2000:]
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 1 << 16)

    with Daemon.start(tmp_path / "d") as daemon:
        process = subprocess.Popen(
            COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(daemon)
        )
        os.close(theirs)
        until(b"tested: ready")
        assert seen.startswith(b"\x1b[?1049h"), "its own screen"
        # A terminal without cursor movement gets one report after another, without control codes.
        dumb, its_side = pty.openpty()
        asked, without = [*COMMAND, "--endpoint", daemon.flight], {"TERM": "dumb"}
        with subprocess.Popen(asked, stdout=its_side, env=environment(daemon) | without) as plain:
            text = b""
            while text.count(b"no alarms") < 2:
                assert select.select([dumb], [], [], 30)[0], text
                text += os.read(dumb, 1 << 16)
            plain.send_signal(signal.SIGINT)
            assert (plain.wait(10), b"\x1b" in text) == (0, False)
        os.close(dumb)
        os.close(its_side)
        # On a pipe each report is a line of JSON until a signal, also for an unreachable daemon.
        asked = [*COMMAND, "--json"]
        with subprocess.Popen(asked, stdout=subprocess.PIPE, env=environment(daemon)) as piped:
            assert piped.stdout is not None
            looks = [json.loads(piped.stdout.readline()) for _ in range(2)]
            assert looks[1]["identity"]["uptime_s"] > looks[0]["identity"]["uptime_s"]
            daemon.kill()
            away: dict[str, Any] = {}
            while "error" not in away:
                away = json.loads(piped.stdout.readline())
            assert (away["endpoint"], away["error"]["code"]) == (daemon.flight, "unreachable")
            piped.send_signal(signal.SIGINT)
            assert piped.wait(10) == 0
        until(b"Unreachable for ")
        process.send_signal(signal.SIGINT)
        until(b"")
        assert process.wait(10) == 0
    while select.select([ours], [], [], 0)[0]:
        try:
            seen += os.read(ours, 1 << 16)
        except OSError:  # no process has the other side open any more
            break
    os.close(ours)
    assert seen.rstrip().endswith(b"\x1b[?1049l"), "the screen of before, and nothing said"
    assert b"\x1b[?25h" in seen[-40:]


@pytest.mark.parametrize(
    ("asked", "said"),
    [(["3"], "SECONDS needs --watch"), (["--watch", "0.1"], "give 0.2 to 3600 seconds")],
)
def test_wrong_usage_is_named(run: Run, asked: list[str], said: str) -> None:
    check_refused(run("status", *asked), 2, said)


def test_a_daemon_unreachable_at_the_start_is_an_error(run: Run) -> None:
    check_refused(run("status", "--watch", "--endpoint", "grpc://127.0.0.1:1"), 3, "127.0.0.1:1")
