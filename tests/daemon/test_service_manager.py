"""Messages that systemd gets from a daemon over a real notification socket, in order."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as fl

from ingester.config.sources import notify_values
from tests.drivers.daemon import Daemon
from tests.drivers.wire import events, put

PATIENCE_S = 30.0


class Heard:
    """A service manager's socket, and the messages received."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self.messages: list[dict[str, str]] = []

    def until(self, name: str, value: str | None = None) -> dict[str, str]:
        """The next message with this field, and with this value if one is given."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._socket.settimeout(PATIENCE_S)
            raw = self._socket.recv(4096).decode()
            message = dict(line.split("=", 1) for line in raw.split("\n"))
            self.messages.append(message)
            if name in message and value in (None, message[name]):
                return message
        raise AssertionError(f"no {name} in {self.messages}")

    def drop_what_waits(self) -> None:
        """Discard the messages received but not yet read."""
        while self.hears_within(0.0):
            pass

    def hears_within(self, seconds: float) -> bool:
        """Whether a message arrives within this time; reads it."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if readable:
            self._socket.recv(4096)
        return bool(readable)


@contextmanager
def _manager(address: str) -> Iterator[Heard]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        yield Heard(listening)


def test_a_manager_hears_of_start_life_reload_and_stop(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    told = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"}
    with _manager(path) as heard, Daemon.start(tmp_path / "data", environment=told) as daemon:
        ready = heard.until("READY")
        assert ready["STATUS"].startswith("ready: 0 rows")
        # A slow start extends its timeout with every message.
        starting = [m for m in heard.messages if m.get("STATUS", "").startswith("starting")]
        assert starting
        assert all(int(m["EXTEND_TIMEOUT_USEC"]) >= 10_000_000 for m in starting)
        # Alive: three watchdog messages well within the timeout.
        began = time.monotonic()
        for _ in range(3):
            heard.until("WATCHDOG", "1")
        assert time.monotonic() - began < 5
        with fl.connect(daemon.flight) as client:
            put(client, ("n", "t"), events(0, 5))
        while not heard.until("WATCHDOG")["STATUS"].startswith("ready: 5 rows"):
            pass
        before = time.monotonic_ns() // 1000
        os.kill(daemon.pid, signal.SIGHUP)
        reloading = heard.until("RELOADING", "1")
        assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        heard.until("READY", "1")
        # A frozen daemon sends nothing, so systemd would kill it.
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            heard.drop_what_waits()
            assert not heard.hears_within(1.0)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert daemon.terminate() == 0
        heard.until("STOPPING", "1")


def test_the_environment_says_where_and_whom_the_watchdog_watches() -> None:
    assert notify_values({}).address is None
    assert notify_values({"NOTIFY_SOCKET": "vsock:2:1"}).address is None
    told = {"NOTIFY_SOCKET": "@sd", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}
    assert (notify_values(told, 7).address, notify_values(told, 7).watchdog_s) == ("\0sd", 60.0)
    assert notify_values(told, 8).watchdog_s is None
