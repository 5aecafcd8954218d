"""The calls that :class:`Client` needs: :class:`OneDaemon` makes them at one daemon.

:class:`.cluster.ClusterConnection` makes them at several.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa

from .connection import Connection
from .retry import RetryPolicy
from .route import Route, RouteRequest, ToOneDaemon
from .streams import QueryStream
from .wire import OriginState, QueryRequest, TableSummary

Missing = Literal["error", "allow"]
"""Whether an answer may lack the rows of unreachable daemons."""


class Calls(Protocol):
    """Idempotent calls, which are retried."""

    endpoint: str
    timeout_s: float
    retry: RetryPolicy

    def close(self) -> None:
        """Drop the connections."""

    def check(self) -> None:
        """Raise :class:`InvalidRequest` if the client is closed, or the process was forked."""

    def route(self, request: RouteRequest) -> Route:
        """A writer's route; nothing is sent yet."""

    def one(self, *key: str) -> Connection:
        """A connection to the available daemon that a key prefers."""

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

    def route(self, request: RouteRequest) -> Route:
        """The route that always uses the daemon."""
        return ToOneDaemon(self, request)

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
