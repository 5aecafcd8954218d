"""Ports that are known before somebody listens there, or that a daemon keeps over restarts.

    with Daemon.start(tmp_path / "d", arguments=steady_flight()) as daemon:
        daemon.kill()
        daemon = daemon.again()            # at the same address

Who asks the kernel for port 0 and listens at once needs none of this. But a port that the kernel
gave and that is let go of is one of those that it gives to every outgoing connection: the next one
of any process may have it when the daemon wants it (back). So these lie outside of that range.

No two processes have the same one: it is claimed by the UDP port of its number, which nothing here
speaks. The claim is held for the life of the process, and the kernel ends it however that ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
FIRST, LAST = 10_000, 65_535
"""Below are the ports of known services, which some test may name."""
EPHEMERAL = (49_152, 65_535)
"""Of outgoing connections, where the system does not say: IANA's."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody listens at, which no other caller of this gets.

    Raises:
        RuntimeError: all are taken.
    """
    for port in _candidates():
        if (claim := claimed(port)) is not None:
            _claims.append(claim)
            return port
    raise RuntimeError(f"no port of {HOST} is free outside of the range of {_RANGE}")


def claimed(port: int) -> socket.socket | None:
    """The claim to a port, held until it is closed; None where it is not to be had."""
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
    """Arguments of ``ingester serve``, by which a daemon is where it was when it comes back."""
    return ("--flight", f"{HOST}:{free_port()}")


def ephemeral() -> tuple[int, int]:
    """The first and last port of outgoing connections."""
    try:
        first, last = map(int, _RANGE.read_text().split())
    except OSError:
        return EPHEMERAL
    return first, last


def outside(ephemeral: tuple[int, int]) -> list[int]:
    """The ports to choose from: all of them where none is left."""
    ports = range(FIRST, LAST + 1)
    first, last = ephemeral
    return [port for port in ports if not first <= port <= last] or [*ports]


def _candidates() -> Iterator[int]:
    """Each, from a place of this process's own, so that a port rests before its next use."""
    ports = outside(ephemeral())
    start = os.getpid() * 101 + len(_claims)
    yield from (ports[(start + n) % len(ports)] for n in range(len(ports)))
