"""Ports that are known before a process listens on them, or that a daemon keeps across restarts.

    with Daemon.start(tmp_path / "d", arguments=steady_flight()) as daemon:
        daemon.kill()
        daemon = daemon.again()            # at the same address

A server that binds port 0 and listens immediately does not need this module. A port that was
obtained that way and closed belongs to the ephemeral range, so the kernel may assign it to an
outgoing connection of any process before the daemon binds it again. Ports of this module lie
outside that range.

No two processes get the same port: each port is claimed by binding the UDP port of the same
number, which nothing here uses. The kernel releases the claim when the process ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
FIRST, LAST = 10_000, 65_535
"""Lower ports belong to well-known services, which a test may use."""
EPHEMERAL = (49_152, 65_535)
"""IANA's ephemeral range, where the system does not report its own."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a free port that no other caller gets.

    Raises:
        RuntimeError: All ports are taken.
    """
    for port in _candidates():
        if (claim := claimed(port)) is not None:
            _claims.append(claim)
            return port
    raise RuntimeError(f"no port of {HOST} is free outside of the range of {_RANGE}")


def claimed(port: int) -> socket.socket | None:
    """Return the claim to a port, held until it is closed; ``None`` if the port is taken."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((HOST, port))
        with socket.socket() as tried:
            tried.bind((HOST, port))
    except OSError:
        claim.close()
        return None
    return claim


def steady_flight() -> tuple[str, str]:
    """Return arguments of ``ingester serve`` that keep the daemon's address across restarts."""
    return ("--flight", f"{HOST}:{free_port()}")


def ephemeral() -> tuple[int, int]:
    """Return the first and last port of the ephemeral range."""
    try:
        first, last = map(int, _RANGE.read_text().split())
    except OSError:
        return EPHEMERAL
    return first, last


def outside(ephemeral: tuple[int, int]) -> list[int]:
    """Return the ports outside the ephemeral range; all ports if none remain."""
    ports = range(FIRST, LAST + 1)
    first, last = ephemeral
    return [port for port in ports if not first <= port <= last] or [*ports]


def _candidates() -> Iterator[int]:
    """Yield each port once, starting at a position of this process.

    The varying start lets a port rest before its reuse.
    """
    ports = outside(ephemeral())
    start = os.getpid() * 101 + len(_claims)
    yield from (ports[(start + n) % len(ports)] for n in range(len(ports)))
