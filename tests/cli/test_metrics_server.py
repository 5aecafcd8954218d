"""The metrics port of a follower and of a controller."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter

from ingester.cli import metrics_server
from ingester.cli.exits import CommandFailed
from ingester.cli.metrics_server import MetricsAddress, MetricsServer

late: list[str] = []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.5)
    registry = CollectorRegistry()
    Counter("ingester_things", "Things", registry=registry).inc(3)
    late.clear()
    made = MetricsServer(
        MetricsAddress("--http", "127.0.0.1:0", False), registry, lambda: "".join(late)
    )
    yield made
    made.close()


def get(url: str, host: str = "") -> tuple[int, str]:
    """Return status and body."""
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_are_served(server: MetricsServer) -> None:
    status, body = get(f"{server.url}/metrics")
    assert status == 200
    assert "ingester_things_total 3.0" in body
    assert get(f"{server.url}/health/live") == (200, "live\n")
    assert get(f"{server.url}/health/ready") == (200, "ready\n")
    late.append("shop/visits\n")
    assert get(f"{server.url}/health/ready") == (503, "shop/visits\n")
    assert get(f"{server.url}/elsewhere")[0] == 404


def test_the_loopback_address_answers_only_for_its_own_names(server: MetricsServer) -> None:
    assert get(f"{server.url}/metrics", "evil.example.org")[0] == 421
    assert get(f"{server.url}/metrics", "localhost:1")[0] == 200


def test_silent_connections_are_closed_and_delay_no_other(server: MetricsServer) -> None:
    at = urlsplit(server.url)
    with ExitStack() as held:
        idle = [
            held.enter_context(socket.create_connection((at.hostname or "", at.port or 0), 10))
            for _ in range(50)
        ]
        assert get(f"{server.url}/health/live")[0] == 200
        assert [each.recv(1) for each in idle] == [b""] * len(idle)


@pytest.mark.parametrize(
    ("listen", "told"),
    [("0.0.0.0:0", "reached from other machines"), ("localhost", "is not HOST:PORT")],
)
def test_an_unusable_address_is_refused(listen: str, told: str) -> None:
    with pytest.raises(CommandFailed, match=told):
        MetricsServer(MetricsAddress("--http", listen, False), CollectorRegistry(), lambda: "")
