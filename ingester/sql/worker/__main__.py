"""The worker process: ``python -m ingester.sql.worker DESCRIPTOR LIMITS``.

It computes one query at a time until the daemon closes its standard input or the socket. A second
process has its own memory, so a query that fails takes nothing else with it.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys
import threading

import msgspec

from ingester.sql.wire import DATABASES, Channel, ChannelClosed, Query, WorkerLimits, decode
from ingester.sql.worker.computing import compute
from ingester.sql.worker.database import new_database

NICE = 10
RECURSION = 10_000
"""Enough for the tree of a statement with DuckDB's own limit, 1000 nested expressions."""
QUIET_MS = 20
"""Databases, of 4 MB each, are made ahead when no query has arrived for this long: making one takes
longer than a small query."""


def main() -> None:
    """Serve queries until the daemon ends."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    limits = msgspec.json.decode(sys.argv[2], type=WorkerLimits)
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (limits.process_bytes, limits.process_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(RECURSION)
    arrivals = select.poll()
    arrivals.register(channel.fileno(), select.POLLIN)
    ready = [new_database(limits)]
    try:
        while True:
            while len(ready) < DATABASES - 1 and not arrivals.poll(QUIET_MS):
                ready.append(new_database(limits))
            kind, body = channel.receive()
            assert kind == b"Q", kind
            connection = ready.pop() if ready else new_database(limits)
            compute(decode(body, type=Query), connection, channel)
            connection.close()
    except ChannelClosed:
        os._exit(0)


def _end_with_daemon() -> None:
    """End the process as soon as the daemon has ended, whatever is being computed."""
    sys.stdin.buffer.read()
    os._exit(0)


main()
