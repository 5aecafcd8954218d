"""Ports that tests use: exclusive to one test, and always chosen by the same function."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.drivers.ports import HOST, claimed, ephemeral, free_port, outside

TESTS = Path(__file__).resolve().parents[1]
LISTENS_ITSELF = {"drivers/ports.py", "house/test_ports.py", "client/wire_cutter.py"}
LISTENS_ITSELF |= {"server/http/test_server.py", "daemon/test_refused_starts.py"}
LISTENS_ITSELF |= {"daemon/test_shutdown.py", "server/auth/test_jwt_tokens.py"}
LISTENS_ITSELF |= {"pushes/test_shipped.py"}


def test_a_port_is_handed_out_once_and_none_that_a_connection_could_get() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    first, last = ephemeral()
    assert all(not first <= port <= last for port in ports)
    assert [port for port in ports if claimed(port) is not None] == []
    for port in ports:
        socket.create_server((HOST, port)).close()


def test_a_port_that_somebody_listens_at_is_not_handed_out() -> None:
    with socket.create_server((HOST, 0)) as listener:
        assert claimed(listener.getsockname()[1]) is None


@pytest.mark.parametrize(
    ("range_of_connections", "first", "last", "count"),
    [
        ((32_768, 60_999), 10_000, 65_535, 22_768 + 4_536),
        ((49_152, 65_535), 10_000, 49_151, 39_152),
        ((1_024, 20_000), 20_001, 65_535, 45_535),
        ((1_024, 65_535), 10_000, 65_535, 55_536),
    ],
)
def test_ports_are_outside_of_the_range_where_one_is(
    range_of_connections: tuple[int, int], first: int, last: int, count: int
) -> None:
    ports = outside(range_of_connections)
    assert (ports[0], ports[-1], len(ports)) == (first, last, count)


def test_no_test_takes_a_port_from_the_kernel_and_lets_go_of_it() -> None:
    """A restarted daemon does not reuse its old port, which may be taken by then."""
    chosen = re.compile(r"getsockname\(\)|\"--(?:flight|http)\", \w+\.(?:flight|http)\b")
    found = {
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("*.py")
        if chosen.search(file.read_text())
    }
    assert found - LISTENS_ITSELF == set(), "free_port and steady_flight of tests.drivers.ports"
