"""The calls of a client of several daemons, and the daemons that each call needs.

a stream of writes        one daemon, by table and origin (:mod:`.route`)
query                     all, one snapshot each (:mod:`.union`)
sql                       any, which reads the buffers of the others (:mod:`.sql`)
schema, create_table      any
tables, describe, persist, origins, checkpoints   all, merged (:mod:`.merging`)
status and similar        refused: ask each of ``Client.daemons()``
"""

import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from .. import arguments
from ..connection import Connection
from ..credentials import ConnectionOptions
from ..errors import ClientError, InvalidRequest, Unavailable, is_unavailable
from ..retry import NEVER, RetryPolicy, RetryState
from ..route import Route, RouteRequest
from ..sql_stream import SqlStream
from ..streams import QueryStream
from ..wire import Missing, OriginState, QueryRequest, TableSummary
from . import merging
from .asking import Asking
from .daemons import Lookup, addresses_of
from .members import Members
from .route import SharedRoutes, ToMany
from .sql import answer_of_one
from .union import Union

ROWS_MISSING = (
    "rows that it has taken and that are in no file yet would be missing: missing='allow'"
    " (--allow-missing) answers without them and reports it"
)
COUNTS_MISSING = "what only it knows would be missing: restart it, or make a client without it"
SEQUENCE_MISSING = (
    "the position of an origin is unknown without it: restart it, or pass first_sequence"
    " (--first-sequence) with the write, which then continues without it"
)
OWNERS_DIFFER_S = 30.0
"""How long a ``sync`` that has left a daemon for an owner does not return to it."""
_ONE_DAEMON = frozenset({"create_table", "checkpoint_put", "checkpoint_delete"})


FollowOwner = Callable[[ClientError, Connection, tuple[str, str]], Connection | None]


class OneOfSeveral(Connection):
    """Calls on one of the daemons of a client."""

    follow_owner: FollowOwner

    def of_owner(self, error: ClientError, key: tuple[str, str]) -> Connection | None:
        """The connection to the daemon that owns what this one refuses."""
        return self.follow_owner(error, self, key)

    def with_hint(self, error: ClientError, what: str) -> ClientError:
        """The error of a stream that is bound to this daemon; a new stream may use another one."""
        if not is_unavailable(error):
            return error
        message = (
            f"{error}; only {self.endpoint} has what was begun: start again with"
            f" client.{what}(…), which uses a daemon that accepts writes"
        )
        return type(error)(message, code=error.code, details=error.details)


class ClusterConnection:
    """The calls of a client of several daemons. Any thread."""

    def __init__(
        self,
        endpoint: Any,
        timeout_s: float,
        retry: RetryPolicy,
        options: ConnectionOptions | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        """Raises :class:`InvalidRequest` as :class:`Connection` does; nothing is sent yet."""
        options = arguments.options(options)
        addresses = addresses_of(endpoint, options.scheme)
        self.endpoint = str(addresses)
        self.timeout_s = arguments.seconds("timeout_s", timeout_s)
        self.retry = arguments.policy(retry)
        self._closed = False
        self._lock = threading.Lock()

        def connect(each: str) -> Connection:
            # It never retries: that is done here, also at other daemons.
            one = OneOfSeveral(each, timeout_s, NEVER, options, addresses.host)
            one.follow_owner = self._of_owner
            return one

        self._members = Members(addresses, connect, lookup)
        self._asking = Asking(self._members, self.retry)
        self._routes = SharedRoutes(self._members)
        self._union = Union(self._asking, ROWS_MISSING)
        self._owners: dict[tuple[str, ...], str] = {}
        """The owner that a refusal has named, by the namespace and origin of a ``sync``."""
        self._left: dict[tuple[tuple[str, ...], str], float] = {}
        """When a ``sync`` last left a daemon for an owner."""

    def close(self) -> None:
        """Drop the connections."""
        self._closed = True
        self._members.close()

    def check(self) -> None:
        """Raise :class:`InvalidRequest` if the client is closed, or the process was forked."""
        if self._closed:
            raise InvalidRequest("the client is closed: make another one, or close it later")
        for endpoint in self._members.known:
            self._members.connection(endpoint).check()

    def route(self, request: RouteRequest) -> Route:
        """A writer's route, which begins at the daemon that its table and origin prefer."""
        return ToMany(self._routes, request)

    def one(self, *key: str) -> Connection:
        """A connection to the daemon that a key prefers among those that accept writes.

        An owner that a refusal has named is tried first.

        Raises:
            ClientError: No daemon accepts writes, and the retry policy gave up.
        """

        def accepting(one: Connection) -> Connection:
            error = self._members.error_now(one.endpoint, writes=True)
            if error is not None:
                raise error
            return one

        with self._lock:
            owner = self._owners.get(key)
        return self._asking.any_of(key, accepting, first=owner)

    def _of_owner(
        self, error: ClientError, now: Connection, key: tuple[str, str]
    ) -> Connection | None:
        """The connection to the owner of the table for which a ``sync`` was refused, if any.

        A stream whose tables have several owners would alternate between them: it gets the error.
        """
        named = error.details.get("endpoint")
        if error.code != "owner" or not isinstance(named, str):
            return None
        try:
            owner = self._members.known_as(named)
        except ClientError:
            return None
        with self._lock:
            left_at = self._left.get((key, owner), -math.inf)
            if owner == now.endpoint or time.monotonic() < left_at + OWNERS_DIFFER_S:
                return None
            self._left[key, now.endpoint] = time.monotonic()
            self._owners[key] = owner
        return self._members.connection(owner)

    def check_store(self) -> None:
        """Raise :class:`InvalidRequest` if two daemons are known to have different stores."""
        self._members.of_one_store()

    def each(self) -> list[Connection]:
        """A connection to each of the daemons."""
        return [self._members.connection(each) for each in self._members.endpoints()]

    def rows(self, request: QueryRequest, timeout_s: float | None, missing: Missing) -> pa.Table:
        """The whole answer to a query, within ``timeout_s``.

        An answer that breaks off is requested again, because the caller has seen no part of it.
        """
        within_s = None if timeout_s is None else arguments.seconds("timeout_s", timeout_s)
        give_up_at = math.inf if within_s is None else time.monotonic() + within_s
        retry = RetryState(self.retry, random.random)
        while True:
            with self._with_own_writes(request, missing, within_s) as stream:
                try:
                    batches = [batch for batch, _ in stream]
                except ClientError as exc:
                    delay_s = retry.failed(exc, time.monotonic())
                    if delay_s is None or time.monotonic() + delay_s > give_up_at:
                        raise
                else:
                    return pa.Table.from_batches(batches, stream.schema)
            time.sleep(delay_s)

    def stream_rows(self, request: QueryRequest, missing: Missing) -> QueryStream:
        """The answer to a query, batch by batch."""
        return self._with_own_writes(request, missing, None)

    def _with_own_writes(
        self, request: QueryRequest, missing: Missing, within_s: float | None
    ) -> QueryStream:
        """An answer with everything that this client's own writers got acknowledged.

        Raises:
            Unavailable: Rows that a daemon has lost are still being sent again.
        """
        if request.version is not None:
            return self._union.stream(request, missing, within_s)
        until = time.monotonic() + (self.retry.for_s if within_s is None else within_s)
        while True:
            unreachable = self._routes.own_writes.wait((request.namespace, request.table), until)
            stream = self._union.stream(request, missing, within_s)
            if unreachable <= {*stream.snapshot.missing}:
                return stream
            stream.close()  # one is back, possibly without its rows
            if time.monotonic() >= until:
                raise _unreported(unreachable)

    def sql(self, ticket: bytes, within_s: float | None, missing: Missing) -> SqlStream:
        """The answer to an SQL statement, with this client's own acknowledged writes."""
        until = time.monotonic() + (self.retry.for_s if within_s is None else within_s)
        unreachable = self._routes.own_writes.wait(None, until)
        stream = answer_of_one(self._asking, ticket, within_s, missing)
        if not unreachable <= {*stream.missing}:
            stream.close()
            raise _unreported(unreachable)
        return stream

    def tables(self) -> list[TableSummary]:
        """All tables that a daemon knows, without sizes: no daemon knows those of all."""
        listed = self._asking.all_of(lambda one: one.tables(), about=COUNTS_MISSING)
        names = {
            (each.namespace, each.table) for found in listed.by_endpoint.values() for each in found
        }
        return [TableSummary(*name, rows=-1, bytes=-1) for name in sorted(names)]

    def schema(self, namespace: str, table: str, *, once: bool = False) -> pa.Schema:
        """A table's Arrow schema."""
        return self._asking.any_of(
            (namespace, table), lambda one: one.schema(namespace, table, once=True), once=once
        )

    def act(
        self,
        kind: str,
        body: Mapping[str, Any],
        timeout_s: float | None = None,
        *,
        once: bool = False,
    ) -> list[dict[str, Any]]:
        """The JSON results of an action, merged from all daemons if necessary.

        Raises:
            InvalidRequest: The action concerns a single daemon.
        """

        def call(one: Connection) -> list[dict[str, Any]]:
            return one.act(kind, body, timeout_s, once=True)

        if kind in _ONE_DAEMON:
            key = (str(body.get("namespace", "")), str(body.get("table", "")))
            return self._asking.any_of(key, call, once=once)
        merged = merging.MERGED.get(kind)
        if merged is None:
            raise InvalidRequest(
                f"{kind} concerns one daemon and this client has several: name one endpoint, such"
                f" as {self._members.endpoints()[0]}, or ask each of client.daemons()"
            )
        return merged([*self._asking.all_of(call, about=COUNTS_MISSING).by_endpoint.values()])

    def origins(
        self, origin: str | None = None, table: tuple[str, str] | None = None
    ) -> list[OriginState]:
        """The progress of each origin, or of the one named, over all daemons."""
        about = COUNTS_MISSING if origin is None else SEQUENCE_MISSING
        found = self._asking.all_of(lambda one: one.origins(origin, table), about=about)
        return merging.origins([*found.by_endpoint.values()])


def _unreported(unreachable: set[str]) -> Unavailable:
    return Unavailable(
        f"{', '.join(sorted(unreachable))} may have rows that this client has written and does not"
        " report them: try again",
        code="unavailable",
    )
