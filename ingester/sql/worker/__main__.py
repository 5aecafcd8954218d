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

from ingester.sql.wire import Channel, ChannelClosed, Query, WorkerLimits, decode
from ingester.sql.worker.computing import compute
from ingester.sql.worker.database import new_database

BEYOND_BYTES = 512 << 20
"""Memory of the process besides DuckDB's limit: Python, libraries, Arrow batches."""
NICE = 10
READY = 2
"""Databases made ahead, of 4 MB each: making one takes longer than a small query."""
QUIET_MS = 20
"""They are made when no query has arrived for this long."""


def main() -> None:
    """Serve queries until the daemon ends."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    limits = msgspec.json.decode(sys.argv[2], type=WorkerLimits)
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    os.nice(NICE)
    most = limits.memory + BEYOND_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    arrivals = select.poll()
    arrivals.register(channel.fileno(), select.POLLIN)
    ready = [new_database(limits)]
    try:
        while True:
            while len(ready) < READY and not arrivals.poll(QUIET_MS):
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
