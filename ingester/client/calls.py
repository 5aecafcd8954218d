"""The calls that a client makes, at one daemon or at many: what :class:`Client` asks of either.

:class:`.connection.Connection` makes them at one daemon, :class:`.cluster.ClusterConnection` at one
or at all of several, as each call needs.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa

from .connection import Connection
from .query_stream import QueryStream
from .retry import RetryPolicy
from .route import Route, ToOneDaemon, WayOf
from .wire import OriginState, QueryRequest, TableSummary

Missing = Literal["error", "allow"]
"""Whether an answer may lack the rows of daemons that are away."""


class Calls(Protocol):
    """Calls that change nothing, or the same thing again, repeated while that may help."""

    endpoint: str
    timeout_s: float
    retry: RetryPolicy

    def close(self) -> None:
        """Drop the connections."""

    def check(self) -> None:
        """Raise :class:`InvalidRequest` where no call can be made: closed, or forked."""

    def route(self, way: WayOf) -> Route:
        """A writer's way; nothing is sent yet."""

    def one(self, *key: str) -> Connection:
        """A connection to the daemon that a key prefers of those that are there."""

    def each(self) -> list[Connection]:
        """A connection to each of the daemons."""

    def rows(self, request: QueryRequest, timeout_s: float | None, missing: Missing) -> pa.Table:
        """The whole answer to a query."""

    def stream_rows(self, request: QueryRequest, missing: Missing) -> QueryStream:
        """The answer to a query, batch by batch."""

    def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name."""

    def schema(self, namespace: str, table: str, *, once: bool = False) -> pa.Schema:
        """A table's Arrow schema."""

    def act(
        self,
        kind: str,
        body: Mapping[str, Any],
        timeout_s: float | None = None,
        *,
        once: bool = False,
    ) -> list[dict[str, Any]]:
        """The JSON results of an action."""

    def origins(
        self, origin: str | None = None, table: tuple[str, str] | None = None
    ) -> list[OriginState]:
        """The progress of each origin, or of the one named."""


class OneDaemon(Connection):
    """The :class:`Calls` of a client of one daemon."""

    def route(self, way: WayOf) -> Route:
        """The way that always goes to the daemon."""
        return ToOneDaemon(self, way)

    def one(self, *_key: str) -> Connection:
        """The connection itself."""
        return self

    def each(self) -> list[Connection]:
        """The connection itself."""
        return [self]

    def rows(self, request: QueryRequest, timeout_s: float | None, _missing: Missing) -> pa.Table:
        """The whole answer to a query, of the one daemon: none of its own rows can be missing."""
        return self.read(request.ticket(), timeout_s)

    def stream_rows(self, request: QueryRequest, _missing: Missing) -> QueryStream:
        """The answer to a query, batch by batch."""
        return self.stream(request.ticket())
