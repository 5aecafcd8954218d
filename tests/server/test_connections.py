"""Who only connects takes nothing from others: idle, silent and slow connections, and floods."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import http

PER_PEER, MOST, HTTP_MOST = 20, 30, 16


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("connections")
    with Daemon.start(
        folder / "d",
        limits__connections=MOST,
        limits__connections_per_peer=PER_PEER,
        limits__http_connections=HTTP_MOST,
        http__idle_timeout="1s",
        flight__idle_timeout="1s",
    ) as running:
        yield running


def told(daemon: Daemon) -> Any:
    return json.loads(http(f"{daemon.http}/api/status")[2])["connections"]


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


def test_an_idle_connection_is_closed_and_its_client_goes_on(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        assert list(client.list_actions())
        assert told(daemon)["open"] == 1
        until(lambda: told(daemon)["open"] == 0, "the idle connection to be closed")
        assert list(client.list_actions())


def test_one_address_has_its_share_of_connections_and_no_more(daemon: Daemon) -> None:
    until(lambda: told(daemon)["open"] == 0, "connections of before to be closed")
    before = told(daemon)["refused"]
    with ExitStack() as held:
        mine = [held.enter_context(connected(daemon.flight)) for _ in range(PER_PEER + 5)]
        assert [is_closed(each, 5) for each in mine[PER_PEER:]] == [True] * 5
        others = [
            held.enter_context(connected(daemon.flight, "127.0.0.2"))
            for _ in range(MOST - PER_PEER + 2)
        ]
        assert [is_closed(each, 5) for each in others[-2:]] == [True] * 2
        assert not is_closed(others[0], 0.05)
        found = told(daemon)
        assert (found["open"], found["most"], found["refused"] - before) == (MOST, MOST, 7)
        metrics = http(f"{daemon.http}/metrics")[2].decode()
        assert 'ingester_limit_refused_total{limit="connections_per_peer"} 5.0' in metrics
        assert 'ingester_limit_refused_total{limit="connections"} 2.0' in metrics
        with fl.connect(daemon.flight) as client, pytest.raises(fl.FlightUnavailableError):
            list(client.list_actions(fl.FlightCallOptions(timeout=5)))
    until(lambda: told(daemon)["open"] == 0, "closed connections to be forgotten")
    with fl.connect(daemon.flight) as client:
        assert list(client.list_actions())


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
