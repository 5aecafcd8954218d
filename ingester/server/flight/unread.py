"""What has arrived on connections and made no batch: bytes that nobody has seen.

A stream may send dictionary after dictionary, and half of a message, before anything of it comes
out of Arrow's reader, or its call begins. All messages that arrive share gRPC's quota: when it is
used up nobody else gets in. The kernel knows how much each connection has received.

    unread, and more than its streams can need                cut
    unread, and silent for ``SILENT_S``                       cut
    unread, much in all, silent for ``PAUSE_S``, or nothing
        came out for ``SLOW_S``                               those with most are cut
    memory is short                                           likewise, whatever the time

Law of this file: a connection whose streams wait for the daemon is never cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog
import trio

from ingester.server.flight.connections import Arrived
from ingester.server.flight.hoards import Hoards

log = structlog.get_logger(__name__)

LOOK_S = 0.5
FIRST_S, EACH_S = 0.05, 0.001
"""Between two looks, and what each connection adds to it: a look at a hundred takes a millisecond,
and a connection may bring half a gigabyte in a second."""
SILENT_S = 10.0
PAUSE_S, SLOW_S = 1.0, 5.0
WORTH_BYTES = 8 << 20
"""A connection with less is not cut: nothing is won."""


class Connected(Protocol):
    """The connections of a port, as :class:`ingester.server.flight.connections.Connections`."""

    def arrived(self) -> list[Arrived]:
        """Tell of each connection what it has received."""

    def cut(self, peer: str) -> bool:
        """End the connection of a peer; False where there is none."""


class _Since(NamedTuple):
    """The state of a connection when something of it came out last."""

    progress: tuple[int, int]
    """The batches of its streams, and its calls of which all has arrived."""
    nbytes: int
    at: float


class _Held(NamedTuple):
    """What of a connection has made no batch."""

    peer: str
    nbytes: int
    silent_s: float
    slow_s: float
    """The seconds in which nothing came out."""
    streams: int
    """The number of its calls that are read now; 1 where there is none yet."""


class Unread:
    """The bytes on each connection that have made no batch yet. Loop only.

    Args:
        much_bytes: Beyond so many in all, nobody may be slow: those of the largest batch.
    """

    def __init__(
        self,
        connections: Connected,
        hoards: Hoards,
        much_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._hoards = hoards
        self._much_bytes = much_bytes
        self._now = now
        self._since: dict[str, _Since] = {}

    async def run(self) -> None:
        """Look from now on, until cancelled."""
        while True:
            await trio.sleep(min(LOOK_S, FIRST_S + EACH_S * len(self._since)))
            self.look()

    def look(self) -> None:
        """Look once, and cut who is due."""
        held = sorted(self._held(), key=lambda each: each.nbytes, reverse=True)
        there = sum(each.nbytes for each in held)
        for each in held:
            stops = each.silent_s >= PAUSE_S or each.slow_s >= SLOW_S
            if (
                (stops and there > self._much_bytes)
                or each.silent_s >= SILENT_S
                or each.nbytes > self._most_of(each)
            ):
                self._cut(each)
                there -= each.nbytes

    def _most_of(self, held: _Held) -> int:
        """The bytes that a connection can need: a largest batch of each stream, and dictionaries.

        What a stream sends beyond that makes no batch that would be taken.
        """
        return held.streams * (self._much_bytes + WORTH_BYTES) + self._hoards.most_bytes

    def cut_largest(self) -> bool:
        """Cut those with most that made no batch, until not much is left in all.

        Returns:
            False where nobody was cut.
        """
        held = sorted(self._held(), key=lambda each: each.nbytes, reverse=True)
        there, cut = sum(each.nbytes for each in held), False
        for each in held:
            if there <= self._much_bytes:
                break
            cut |= self._cut(each)
            there -= each.nbytes
        return cut

    def _held(self) -> list[_Held]:
        """Tell of the connections that hold something worth while, and are waited for."""
        streams, now = self._hoards.progress(), self._now()
        since: dict[str, _Since] = {}
        found = []
        for peer, nbytes, silent_s, calls, _ in self._connections.arrived():
            stream = streams.get(peer)
            progress = (0 if stream is None else stream.batches, calls)
            before = self._since.get(peer)
            if before is None and progress == (0, 0):
                before = _Since(progress, 0, now)  # all of it is of what is under way
            elif before is None or before.progress != progress:
                before = _Since(progress, nbytes, now)
            since[peer] = before
            streams_there = 1 if stream is None else stream.streams
            held = _Held(peer, nbytes - before.nbytes, silent_s, now - before.at, streams_there)
            if held.nbytes >= WORTH_BYTES and (stream is None or stream.waits):
                found.append(held)
        self._since = since
        return found

    def _cut(self, held: _Held) -> bool:
        if not self._connections.cut(held.peer):
            return False
        log.warning(
            "connection cut: what it has sent made no batch, and others need the memory",
            peer=held.peer,
            unread_bytes=held.nbytes,
            silent_s=round(held.silent_s, 1),
            slow_s=round(held.slow_s, 1),
            runbook="connection-cut",
        )
        self._since.pop(held.peer, None)
        return True
