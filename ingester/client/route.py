"""A writer's way to a daemon: where its streams go, one after another.

    opened ──▶ lost ──▶ opened again, at the same daemon or at another one ──▶ …

A client of one daemon always goes to that (:class:`ToOneDaemon`); that of several chooses
(:mod:`.cluster.route`). A batch's origin and sequence go along, so that it is applied once wherever
it arrives.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from .checkpoints.checkpoint import Checkpoint
from .connection import Connection, Process
from .errors import ClientError
from .put_stream import PutStream
from .tracing import TracedTable
from .window import Pending
from .wire import OriginState

PROCESS_S = 5.0
"""The time in which a daemon has to say which process it is."""


class WayOf(NamedTuple):
    """The writer for which a way is asked, and what its streams begin with.

    ``asks`` says that what a daemon knows of the origin is of this writer's batches alone.
    """

    table: tuple[str, str]
    origin: str | None
    command: bytes
    schema: pa.Schema
    asks: bool
    traced: TracedTable | None = None

    def traceparent(self) -> str | None:
        """The span for the next stream, where the writer's program traces."""
        return None if self.traced is None else self.traced.of_stream()


def known_at(connection: Connection, way: WayOf) -> OriginState:
    """What a daemon has of a writer's origin in its table. Raises ClientError."""
    assert way.origin is not None
    found = connection.origins(way.origin, way.table)
    return found[0] if found else OriginState(way.origin)


class Loss(NamedTuple):
    """What a lost stream means: the error, and where the next stream goes."""

    error: ClientError
    moves: bool = False
    """Whether another daemon is next: it may take what this one refuses."""
    hangs: bool = False
    """Whether the daemon that is left may still find the stream's first batch and take the origin
    back by it: what others answer from here on has to be kept until it is in object storage."""


class Aside(Protocol):
    """What a writer keeps of batches that daemons have acknowledged which it has left.

    :meth:`look`, :meth:`rejoined`, :meth:`spare`, :meth:`persist` and :meth:`put_state` wait for
    the network.
    """

    @property
    def empty(self) -> bool:
        """Whether nothing is here."""

    @property
    def owes(self) -> bool:
        """Whether something is lost, and has to be sent again."""

    @property
    def certain(self) -> bool:
        """Whether all of it was there at the last look."""

    @property
    def refusal(self) -> ClientError | None:
        """What a daemon that is there has answered for long in place of what it has."""

    def rejoined(self, endpoint: str, process: Process | None) -> None:
        """Ask a daemon, to whose ``process`` a stream is open, for what was acknowledged before.

        Raises:
            ClientError: it does not say.
        """

    def precedes(self, sequence: int, endpoint: str) -> bool:
        """Whether something that came before a sequence is lost, or at another daemon than this."""

    def endpoints(self) -> Sequence[str]:
        """The daemons that have acknowledged what is here."""

    def persist(self, endpoint: str) -> None:
        """Have a daemon put the table into files. Raises ClientError."""

    def put_state(self, endpoint: str, state: Checkpoint) -> None:
        """Give a daemon a source's state without rows. Raises ClientError."""

    def spare(self, first: int | None, endpoint: str) -> None:
        """Have other daemons put into files what a stream that begins so would take from them."""

    def take(self, first: int | None, endpoint: str) -> list[Pending]:
        """What a stream that would begin with ``first`` has to send again before it."""

    def arrived(self) -> None:
        """Note that everything that was sent again is acknowledged."""

    def look(self) -> None:
        """Ask what became of it."""

    def forget(self) -> None:
        """Let go of everything: the writer has ended."""


class Route(Protocol):
    """A writer's way. :meth:`open`, :meth:`known` and :meth:`position` wait for the network."""

    hangs: bool
    """Whether a daemon that was left may still take the origin back: nobody may reuse it."""
    process: Process | None
    """The process to which the last stream was, where that was asked. As long as it runs it has
    what it has acknowledged, and need not look into its store to say so."""

    @property
    def aside(self) -> Aside | None:
        """What is kept of daemons that were left; None where that cannot be."""

    @property
    def endpoint(self) -> str:
        """The daemon of the last stream."""

    def put_aside(self, batches: list[Pending], error: ClientError | None) -> None:
        """Keep what the last stream's daemon has acknowledged, which is left for ``error``."""

    def open(self) -> PutStream:
        """The next stream. Raises a ClientError."""

    def ask_process(self) -> Process | None:
        """The process of the last stream's daemon now; None where it does not say."""

    def position(self) -> int | None:
        """The origin's last sequence that the daemon of the last stream certainly brings."""

    def known(self) -> OriginState:
        """What the daemon has of the origin in the table."""

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """Take note of how the last stream ended.

        Args:
            unanswered: whether batches were sent down the stream and none was answered.
        """

    def moves(self) -> bool:
        """Whether a stream should end at the next batch, as a daemon that is preferred is back."""

    def settle(self) -> None:
        """See that what was acknowledged stays so when nobody keeps it.

        Raises:
            ClientError: it cannot be had.
        """


class ToOneDaemon:
    """The :class:`Route` to the one daemon of a client."""

    hangs = False
    aside: Aside | None = None

    def __init__(self, connection: Connection, way: WayOf) -> None:
        self._connection = connection
        self._way = way
        self.process: Process | None = None

    @property
    def endpoint(self) -> str:
        """The one daemon."""
        return self._connection.endpoint

    def put_aside(self, batches: list[Pending], error: ClientError | None) -> None:
        """Never called: no daemon is left for another one."""

    def open(self) -> PutStream:
        """The next stream."""
        way = self._way
        return self._connection.put_stream(way.command, way.schema, way.traceparent())

    def ask_process(self) -> Process | None:
        """The daemon's process now."""
        return self._connection.process(PROCESS_S)

    def position(self) -> int | None:
        """The last sequence in the daemon's log; None where it is not to be asked."""
        way = self._way
        if not way.asks or way.origin is None:
            return None
        known = [state.memory_sequence for state in self._connection.origins(way.origin)]
        return max((sequence for sequence in known if sequence is not None), default=None)

    def known(self) -> OriginState:
        """What the daemon has of the origin in the table; nothing where it has no such table."""
        return known_at(self._connection, self._way)

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """The error as it is; the next stream goes to the same daemon."""
        return Loss(error)

    def moves(self) -> bool:
        """Never: there is no other daemon."""
        return False

    def settle(self) -> None:
        """Do nothing: no other daemon can take the origin back."""
