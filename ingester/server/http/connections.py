"""The connections of the HTTP port: who makes room when it is full, and who has idled too long.

    opened ─ quiet ─ request ─ answering ─ answered ─ quiet …
               │                   │
               └ idle_s            └ ANSWER_S     then it is overdue, and closed

Law of this file: a new connection always gets its place, so that a probe is answered whoever holds
the others. Room is made by the connection that has been quiet for longest, among those of the peer
that has most of them; one that is being answered goes only where none is quiet. Time is handed in;
no socket is touched here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

ANSWER_S = 60.0
"""The time in which an answer has to be taken: a few megabytes at the most."""
BUSY_SHARE = 16
"""One connection in so many may be answered at a time with anything but health: an answer may be a
megabyte, which a client that does not read keeps here."""


class HttpLimits(NamedTuple):
    """``limits.http_connections`` and ``http.idle_timeout``."""

    connections: int = 256
    idle_s: float = 15.0


DEFAULT_LIMITS = HttpLimits()


@dataclass(eq=False, slots=True)
class HttpConnection:
    """One open connection."""

    peer: str
    since: float
    """The time when it became quiet, or its answer began."""
    answers: int = 0
    """The number of requests that are answered now."""


class HttpConnections:
    """The open connections, in the order in which they last became quiet or busy. Loop only."""

    def __init__(self, limits: HttpLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        # In order of ``since``: what changes goes to the end.
        self._open: dict[HttpConnection, None] = {}
        self._by_peer: Counter[str] = Counter()
        self._weighing = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, peer: str) -> tuple[HttpConnection, HttpConnection | None]:
        """Take a new connection in; give it with the one that has to be closed for it, if any."""
        leaving = None
        if len(self._open) >= self._limits.connections:
            leaving = self._least_needed()
            self.close(leaving)
        made = HttpConnection(peer, self._now())
        self._open[made] = None
        self._by_peer[peer] += 1
        return made, leaving

    def close(self, connection: HttpConnection) -> None:
        """Take a connection out; nothing where it is not there any more."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._by_peer[connection.peer] -= 1
        if not self._by_peer[connection.peer]:
            del self._by_peer[connection.peer]

    def answering(self, connection: HttpConnection, is_health: bool) -> bool:
        """Take note that a request is answered; False where too much is answered already."""
        if not is_health:
            if self._weighing * BUSY_SHARE >= self._limits.connections:
                return False
            self._weighing += 1
        connection.answers += 1
        self._moved(connection)
        return True

    def answered(self, connection: HttpConnection, is_health: bool) -> None:
        """Take note that an answer is over that was begun."""
        self._weighing -= not is_health
        connection.answers -= 1
        self._moved(connection)

    def overdue(self) -> Iterator[HttpConnection]:
        """Yield those that have been quiet, or answered, for too long."""
        now = self._now()
        for each in list(self._open):
            if now - each.since >= (ANSWER_S if each.answers else self._limits.idle_s):
                yield each

    def _moved(self, connection: HttpConnection) -> None:
        if connection in self._open:
            connection.since = self._now()
            del self._open[connection]
            self._open[connection] = None

    def _least_needed(self) -> HttpConnection:
        most = max(self._by_peer.values())
        crowded = [each for each in self._open if self._by_peer[each.peer] == most]
        return next((each for each in crowded if not each.answers), crowded[0])
