"""A writer's route: the daemons to which its streams go, one after another.

    opened ──▶ lost ──▶ opened again, at the same daemon or another one ──▶ …

The client of one daemon (:class:`OneDaemon`) always uses that one; the client of several chooses
(:mod:`.cluster.route`). Batches carry their origin and sequence, so each is applied once wherever
it arrives.
"""

from typing import NamedTuple

import pyarrow as pa

from .connection import Connection, Process
from .delivery import Pending
from .errors import ClientError
from .sql_stream import SqlStream
from .streams import PutStream, QueryStream
from .tracing import TracedTable
from .undurable import UndurableBatches
from .wire import Missing, OriginState, QueryRequest

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


class Route:
    """A writer's route to the one daemon of its client; subclasses choose among several.

    :meth:`open`, :meth:`known` and :meth:`position` wait for the network.
    """

    suspended = False
    """A daemon that was left may still take the origin back; it must not be reused."""
    undurable: UndurableBatches | None = None
    """The batches left at other daemons; None for a single daemon."""
    process: Process | None = None
    """The daemon's process at the last stream, if it was asked. As long as that process runs, it
    has everything that it acknowledged."""

    def __init__(self, connection: Connection, request: RouteRequest) -> None:
        self._connection = connection
        self._request = request

    @property
    def endpoint(self) -> str:
        """The daemon of the last stream."""
        return self._connection.endpoint

    def _daemon(self) -> Connection:
        return self._connection

    def leave_behind(self, batches: list[Pending], error: ClientError | None) -> None:
        """Leave acknowledged batches at the last stream's daemon, because of ``error``.

        Called only if :attr:`undurable` is set.
        """

    def open(self) -> PutStream:
        """The next stream. Raises a ClientError."""
        request = self._request
        return self._connection.put_stream(request.command, request.schema, request.traceparent())

    def ask_process(self) -> Process | None:
        """The current process of the last stream's daemon; None if it does not answer."""
        return self._daemon().process(PROCESS_S)

    def position(self) -> int | None:
        """The origin's last sequence that is certainly safe at the last stream's daemon.

        None if others use the origin as well, or the daemon does not say.
        """
        if not self._request.asks or self._request.origin is None:
            return None
        try:
            known = map(self._safe, self._daemon().origins(self._request.origin))
        except ClientError:
            return None
        return max((sequence for sequence in known if sequence is not None), default=None)

    def _safe(self, state: OriginState) -> int | None:
        return state.memory_sequence

    def known(self) -> OriginState:
        """The origin's state in the table at the last stream's daemon; empty without the table."""
        assert self._request.origin is not None
        found = self._daemon().origins(self._request.origin, self._request.table)
        return found[0] if found else OriginState(self._request.origin)

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """Report how the last stream ended.

        Args:
            unanswered: Batches were sent and none was answered.
        """
        return Loss(error)

    def stays(self) -> bool:
        """Whether :meth:`moves` is known to be false without asking a daemon."""
        return True

    def moves(self) -> bool:
        """Whether the stream should end at the next batch, because a better daemon is available."""
        return False

    def settle(self) -> None:
        """Make acknowledged batches safe before the writer drops them.

        Raises:
            ClientError: That is impossible now.
        """


class OneDaemon(Connection):
    """The calls of a client of one daemon: those of its :class:`Connection`."""

    def route(self, request: RouteRequest) -> Route:
        """The route that always uses the daemon."""
        return Route(self, request)

    def one(self, *_key: str) -> Connection:
        """The connection itself."""
        return self

    def each(self) -> list[Connection]:
        """The connection itself."""
        return [self]

    def rows(self, request: QueryRequest, timeout_s: float | None, _missing: Missing) -> pa.Table:
        """The whole answer to a query."""
        return self.read(request.ticket(), timeout_s)

    def stream_rows(self, request: QueryRequest, _missing: Missing) -> QueryStream:
        """The answer to a query, batch by batch."""
        return self.stream(request.ticket())

    def sql(self, ticket: bytes, within_s: float | None, _missing: Missing) -> SqlStream:
        """The answer to an SQL statement."""
        return self.sql_stream(ticket, within_s)
