"""A writer's route: the daemons to which its streams go, one after another.

    opened ──▶ lost ──▶ opened again, at the same daemon or another one ──▶ …

The client of one daemon always uses that one (:class:`ToOneDaemon`); the client of several chooses
(:mod:`.cluster.route`). Batches carry their origin and sequence, so each is applied once wherever
it arrives.
"""

from typing import NamedTuple, Protocol

import pyarrow as pa

from .connection import Connection, Process
from .delivery import Pending
from .errors import ClientError
from .streams import PutStream
from .tracing import TracedTable
from .undurable import UndurableBatches
from .wire import OriginState

PROCESS_S = 5.0
"""Timeout for asking a daemon which process it is."""


class RouteRequest(NamedTuple):
    """The writer that a route is for, and how its streams begin.

    Attributes:
        asks: The origin is used by this writer alone, so the daemon's answers about it count.
    """

    table: tuple[str, str]
    origin: str | None
    command: bytes
    schema: pa.Schema
    asks: bool
    traced: TracedTable | None = None

    def traceparent(self) -> str | None:
        """The span for the next stream, if the program traces."""
        return None if self.traced is None else self.traced.of_stream()


def known_at(connection: Connection, request: RouteRequest) -> OriginState:
    """The state of a writer's origin in its table at a daemon. Raises ClientError."""
    assert request.origin is not None
    found = connection.origins(request.origin, request.table)
    return found[0] if found else OriginState(request.origin)


class Loss(NamedTuple):
    """The consequence of a lost stream: the error, and where the next stream goes.

    Attributes:
        moves: The next stream goes to another daemon, which may accept what this one refuses.
        suspended: The lost daemon may still receive the stream's first batch and take the origin
            back with it. Batches that other daemons acknowledge are kept until they are durable.
    """

    error: ClientError
    moves: bool = False
    suspended: bool = False


class Route(Protocol):
    """A writer's route. :meth:`open`, :meth:`known` and :meth:`position` wait for the network.

    Attributes:
        suspended: A daemon that was left may still take the origin back; it must not be reused.
        process: The daemon's process at the last stream, if it was asked. As long as that process
            runs, it has everything that it acknowledged.
    """

    suspended: bool
    process: Process | None

    @property
    def undurable(self) -> UndurableBatches | None:
        """The batches left at other daemons; None for a single daemon."""

    @property
    def endpoint(self) -> str:
        """The daemon of the last stream."""

    def leave_behind(self, batches: list[Pending], error: ClientError | None) -> None:
        """Leave acknowledged batches at the last stream's daemon, because of ``error``."""

    def open(self) -> PutStream:
        """The next stream. Raises a ClientError."""

    def ask_process(self) -> Process | None:
        """The current process of the last stream's daemon; None if it does not answer."""

    def position(self) -> int | None:
        """The origin's last sequence that is certainly safe at the last stream's daemon."""

    def known(self) -> OriginState:
        """The origin's state in the table at the daemon."""

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """Report how the last stream ended.

        Args:
            unanswered: Batches were sent and none was answered.
        """

    def moves(self) -> bool:
        """Whether the stream should end at the next batch, because a better daemon is available."""

    def settle(self) -> None:
        """Make acknowledged batches safe before the writer drops them.

        Raises:
            ClientError: That is impossible now.
        """


class ToOneDaemon:
    """The :class:`Route` of a client of one daemon."""

    suspended = False
    undurable: UndurableBatches | None = None

    def __init__(self, connection: Connection, request: RouteRequest) -> None:
        self._connection = connection
        self._request = request
        self.process: Process | None = None

    @property
    def endpoint(self) -> str:
        """The one daemon."""
        return self._connection.endpoint

    def leave_behind(self, batches: list[Pending], error: ClientError | None) -> None:
        """Never called: the daemon is never left for another one."""

    def open(self) -> PutStream:
        """The next stream."""
        request = self._request
        return self._connection.put_stream(request.command, request.schema, request.traceparent())

    def ask_process(self) -> Process | None:
        """The daemon's current process."""
        return self._connection.process(PROCESS_S)

    def position(self) -> int | None:
        """The last sequence in the daemon's log; None if others use the origin as well."""
        if not self._request.asks or self._request.origin is None:
            return None
        known = [state.memory_sequence for state in self._connection.origins(self._request.origin)]
        return max((sequence for sequence in known if sequence is not None), default=None)

    def known(self) -> OriginState:
        """The origin's state in the table at the daemon; empty if there is no such table."""
        return known_at(self._connection, self._request)

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """The error; the next stream goes to the same daemon."""
        return Loss(error)

    def moves(self) -> bool:
        """Always false: there is no other daemon."""
        return False

    def settle(self) -> None:
        """No-op: no other daemon can take the origin."""
