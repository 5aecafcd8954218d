"""What has arrived on connections and made no batch: bytes that nobody has seen.

A stream may send dictionary after dictionary, and half of a message, before anything of it comes
out of Arrow's reader. The system knows how much each connection has received; a stream that gets
nothing out while its connection receives holds what came.

Law of this file: it looks every ``LOOK_S`` and does nothing; :meth:`Unread.cut_largest` is for when
memory is short.

Source: struct tcp_info in ``<linux/tcp.h>``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog
import trio

from ingester.server.flight.connections import Connections
from ingester.server.flight.hoards import Hoards

log = structlog.get_logger(__name__)

LOOK_S = 0.5
WORTH_BYTES = 8 << 20
"""A connection with less is not cut: nothing is won."""


class _Since(NamedTuple):
    """The state of a connection when one of its streams got something out last."""

    progress_at: float
    received_bytes: int


class Unread:
    """The bytes on each connection that have made no batch yet. Loop only."""

    def __init__(
        self, connections: Connections, hoards: Hoards, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._connections = connections
        self._hoards = hoards
        self._now = now
        self._since: dict[str, _Since] = {}

    async def run(self) -> None:
        """Look from now on, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> Mapping[str, int]:
        """Give the bytes of each connection that has streams of writes, by its peer."""
        progress = self._hoards.progress()
        received = self._connections.received(progress) if progress else {}
        since, found = {}, {}
        for peer, nbytes in received.items():
            before = self._since.get(peer)
            if before is None or before.progress_at != progress[peer]:
                # One that is new has sent all of it for its stream.
                had = 0 if before is None else nbytes
                before = _Since(progress[peer], had)
            since[peer] = before
            found[peer] = nbytes - before.received_bytes
        self._since = since
        return found

    def cut_largest(self) -> bool:
        """Cut the connection with most that has made no batch; False where none has much."""
        found = self.look()
        peer = max(found, key=found.__getitem__, default=None)
        if peer is None or found[peer] < WORTH_BYTES or not self._connections.cut(peer):
            return False
        log.warning(
            "connection cut: what it has sent made no batch, and memory is short",
            peer=peer,
            unread_bytes=found[peer],
            runbook="connection-cut",
        )
        del self._since[peer]
        return True
