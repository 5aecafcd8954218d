"""Floods: bytes on a connection that make no call and no batch, as fast as the network takes them.

Frames of HTTP/2 cost their sender nothing: pings that nobody asked for, settings, window updates,
frames of kinds that are not known, heads that never end, calls that are taken back or refused. A
thread of gRPC's reads a connection as long as there is anything; two such connections had the two
that poll, and everybody else waited until they paused.

    bytes of a connection, less ``FREE_BYTES_S`` of each second, since something came out of it last
        beyond its allowance ── cut, and its address is held back

A connection may send the largest message, and one for each of its streams; no message of a client
that follows the protocol is larger, and what else it sends is a small share of it. Where a caller
was let in there may be many calls at a time, and it has ``CALLER_BYTES`` for them. Connections on
which no caller was let in have that together, those of one address: beyond ``STRANGER_BYTES`` there
is one of them, as one alone makes nobody wait.

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

FREE_BYTES_S = 4 << 20
"""So much in a second makes nobody wait, and is forgotten."""
CALLER_BYTES = 256 << 20
"""What callers that were let in may send at a time beside a message: 64 actions with the largest
body, on one connection. They come in turns, a part of each, and none is whole before nearly all."""
STRANGER_BYTES = 16 << 20
"""More than the first call of a connection has, with a schema or the body of an action that is
taken. A larger one arrives all the same, and its refusal says why."""

LOOK_S, MOST_LOOK_S, LOOK_SHARE = 0.1, 0.5, 0.01
"""The time between two looks; more where looking would take more than a share of it."""


class Connected(Protocol):
    """The connections of a port, as :class:`ingester.server.flight.connections.Connections`."""

    def arrived(self) -> list[Arrived]:
        """Tell of each connection what it has received."""

    def cut_and_hold_back(self, peer: str) -> bool:
        """End a connection, and hold back its address; False where there is none."""


class _Seen(NamedTuple):
    """A connection as it was when it was looked at last."""

    nbytes: int
    progress: tuple[int, int]
    spent: float
    """The bytes of its allowance that are gone."""


class _Spent(NamedTuple):
    """What a stranger has sent."""

    peer: str
    nbytes: int


class Floods:
    """What each connection has of its allowance. Loop only.

    Args:
        connections: are looked at.
        hoards: of their streams.
        message_bytes: the largest message that is taken.
        now: the clock.
    """

    def __init__(
        self,
        connections: Connected,
        hoards: Hoards,
        message_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._hoards = hoards
        self._message_bytes = message_bytes
        self._now = now
        self._seen: dict[str, _Seen] = {}
        self._at = now()

    async def run(self) -> None:
        """Look from now on, until cancelled."""
        while True:
            began = self._now()
            self.look()
            took_s = self._now() - began
            await trio.sleep(min(MOST_LOOK_S, max(LOOK_S, took_s / LOOK_SHARE)))

    def look(self) -> None:
        """Look at every connection once, and cut who floods."""
        now, streams = self._now(), self._hoards.progress()
        free = FREE_BYTES_S * (now - self._at)
        seen, self._at = self._seen, now
        self._seen = {}
        strangers: dict[str, list[_Spent]] = {}
        for each in self._connections.arrived():
            stream = streams.get(each.peer)
            progress = (0 if stream is None else stream.batches, each.calls)
            before = seen.get(each.peer, _Seen(0, (0, 0), 0.0))
            spent = max(0.0, before.spent + each.nbytes - before.nbytes - free)
            if before.progress != progress and (each.let_in or stream is not None):
                spent = 0.0
            self._seen[each.peer] = _Seen(each.nbytes, progress, spent)
            most = self._message_bytes * (1 if stream is None else stream.streams + 1)
            most += CALLER_BYTES if each.let_in else 0
            if spent > most and (stream is None or stream.waits):
                self._end(each.peer, int(spent))
            elif stream is None and not each.let_in and spent > STRANGER_BYTES:
                address = each.peer.rpartition(":")[0]
                strangers.setdefault(address, []).append(_Spent(each.peer, int(spent)))
        for found in strangers.values():
            if len(found) > 1:
                for peer, nbytes in found:
                    self._end(peer, nbytes)

    def _end(self, peer: str, nbytes: int) -> None:
        if self._connections.cut_and_hold_back(peer):
            log.warning(
                "connection cut: it floods the port with bytes that make no call and no batch",
                peer=peer,
                flood_bytes=nbytes,
                runbook="connection-flooded",
            )
        self._seen.pop(peer, None)
