"""The messages between the daemon and a worker stay in step, whatever fails."""

from __future__ import annotations

import socket
import subprocess
import sys

from ingester.sql.wire import Channel

LITTLE_MEMORY = """
import resource, socket, sys
from ingester.sql.wire import Channel

channel = Channel(socket.socket(fileno=int(sys.argv[1])))
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + (16 << 20),) * 2)
try:
    channel.receive()
except MemoryError:
    kind, body = channel.receive()
    channel.send(kind, [b"read ", body])
"""


def test_a_message_after_one_that_does_not_fit_into_memory_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [sys.executable, "-c", LITTLE_MEMORY, str(theirs.fileno())]
        with subprocess.Popen(arguments, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            channel = Channel(ours)
            channel.send(b"B", [bytes(64 << 20)])
            channel.send(b"Z", [b"next"])
            kind, body = channel.receive()
            assert (kind, body.to_pybytes()) == (b"Z", b"read next")
        assert process.returncode == 0
