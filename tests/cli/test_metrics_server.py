"""The port of a follower's metrics, and of a controller's: who only connects takes nothing."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from ingester.cli.metrics_server import MOST_CONNECTIONS, MetricsAddress, MetricsServer
from tests.drivers.waiting import until


def test_idle_connections_have_their_places_and_their_time_and_no_more() -> None:
    address = MetricsAddress("--http", "127.0.0.1:0", False)
    server = MetricsServer(address, CollectorRegistry(), lambda: "", silent_s=0.5)
    at = urlsplit(server.url)
    assert at.hostname is not None

    def connected() -> socket.socket:
        return socket.create_connection((at.hostname or "", at.port or 0), 10)

    def is_answered() -> bool:
        try:
            with urllib.request.urlopen(f"{server.url}/health/live", timeout=10) as answer:
                return bool(answer.read() == b"live\n")
        except OSError:
            return False

    with ExitStack() as held:
        idle = [held.enter_context(connected()) for _ in range(MOST_CONNECTIONS + 8)]
        assert [each.recv(1) for each in idle[-8:]] == [b""] * 8, "there is no place for them"
        until(is_answered, "those that say nothing to be closed")
        assert [each.recv(1) for each in idle] == [b""] * len(idle)
    server.close()


def test_a_client_that_sends_a_byte_at_a_time_has_no_more_time() -> None:
    address = MetricsAddress("--http", "127.0.0.1:0", False)
    server = MetricsServer(address, CollectorRegistry(), lambda: "", silent_s=0.5)
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname or "", at.port or 0), 0.1) as slow:

        def is_closed() -> bool:
            try:
                slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_closed, "it to be closed")
    server.close()


def test_a_connection_without_a_thread_takes_no_place() -> None:
    address = MetricsAddress("--http", "127.0.0.1:0", False)
    server = MetricsServer(address, CollectorRegistry(), lambda: "")
    at = urlsplit(server.url)
    before = threading.stack_size(1 << 47)  # more than there is: no thread can be had
    try:
        for _ in range(MOST_CONNECTIONS + 1):
            with socket.create_connection((at.hostname or "", at.port or 0), 10) as turned_away:
                assert turned_away.recv(1) == b""
    finally:
        threading.stack_size(before)
    with urllib.request.urlopen(f"{server.url}/health/live", timeout=10) as answer:
        assert answer.read() == b"live\n"
    server.close()
