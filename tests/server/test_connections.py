"""Idle and slow connections to the HTTP port are closed, and a probe finds room beside a flood."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.drivers.daemon import Daemon

HTTP_MOST = 16


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("connections")
    with Daemon.start(
        folder / "d",
        limits__http_connections=HTTP_MOST,
        http__idle_timeout="1s",
    ) as running:
        yield running


def connected(url: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = urlsplit(url).netloc.rpartition(":")
    return socket.create_connection((host, int(port)), 10, source_address=(source, 0))


def is_closed(connection: socket.socket, within_s: float) -> bool:
    """Whether the other side closes it within the time, whatever it says before."""
    connection.settimeout(within_s)
    with suppress(ConnectionResetError):
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            return False
    return True


def test_a_probe_is_answered_at_once_beside_idle_connections(daemon: Daemon) -> None:
    took_s: list[float] = []
    # A machine may stand still in one of them, and in all of them it does not.
    while not took_s or min(took_s) >= 0.9:
        assert len(took_s) < 5, f"connections had idled too long by then: {took_s}"
        with ExitStack() as held:
            flood = [held.enter_context(connected(daemon.http)) for _ in range(5 * HTTP_MOST)]
            began = time.monotonic()
            probe = held.enter_context(connected(daemon.http, "127.0.0.2"))
            probe.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert probe.recv(12) == b"HTTP/1.1 200"
            took_s.append(time.monotonic() - began)
            closed = [is_closed(each, 5) for each in flood[: 4 * HTTP_MOST]]
            assert closed == [True] * 4 * HTTP_MOST


def test_who_sends_slowly_or_only_begins_is_closed(daemon: Daemon) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    with connected(daemon.http) as silent, connected(daemon.http) as modern:
        modern.sendall(preface)
        with connected(daemon.http) as slow:
            give_up_at, closed = time.monotonic() + 10, False
            while not closed and time.monotonic() < give_up_at:
                with suppress(BrokenPipeError, ConnectionResetError):
                    slow.sendall(b"G")
                closed = is_closed(slow, 0.1)
            assert closed
        assert is_closed(silent, 5)
        assert is_closed(modern, 5), "a client of HTTP/2 that asks for nothing"
