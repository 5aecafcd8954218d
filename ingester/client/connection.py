"""A connection to one daemon. It makes all calls of pyarrow, or opens the streams that do.

Errors of pyarrow become a :class:`ClientError`. Calls are retried under the policy, so they must be
idempotent.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from . import arguments, lifetime, tracing
from .credentials import TLS, ConnectionOptions, Credentials
from .errors import (
    ClientError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unimplemented,
    UnknownOutcome,
    from_arrow,
)
from .retry import NEVER, RetryPolicy, RetryState
from .sql_stream import SqlStream
from .streams import Load, PutStream, QueryStream
from .wire import OriginState, TableSummary, encode, given

# By default gRPC waits a second, then up to two minutes, before it tries a lost address again; a
# daemon restarts faster. With a separate pool, clients do not share their backoff.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
]

T = TypeVar("T")


class Process(NamedTuple):
    """A process of a daemon. Epochs are per daemon id: two daemons may have the same."""

    ingester_id: str
    incarnation: str
    epoch: str


class Connection:
    """Calls on one daemon, from any number of threads. Connects at the first call."""

    def __init__(
        self,
        endpoint: str,
        timeout_s: float,
        retry: RetryPolicy,
        options: ConnectionOptions | None = None,
        hostname: str | None = None,
    ) -> None:
        """``hostname`` is the name in the daemon's certificate, if it is not the endpoint's.

        Raises:
            InvalidRequest: An invalid address, duration, policy or option.
        """
        options = arguments.options(options)
        self.endpoint = arguments.endpoint(endpoint, options.scheme)
        self.timeout_s = arguments.seconds("timeout_s", timeout_s)
        self.retry = arguments.policy(retry)
        self._closed = False
        self._load = Load()
        self._hostname = hostname
        self._credentials = Credentials(self.endpoint, options)
        lifetime.begin()
        self._opened: flight.FlightClient | None = self._open()
        """None after :meth:`close`."""

    def with_hint(self, error: ClientError, what: str) -> ClientError:
        """The error of a ``sync`` or ``copy``, which is bound to one daemon, with a hint."""
        return error

    def of_owner(self, error: ClientError, key: tuple[str, str]) -> "Connection | None":
        """The connection to the owner that a refusal names, if the stream may continue there.

        Args:
            key: The key of :meth:`Calls.one` with which the stream was begun.
        """
        return None

    def _open(self) -> flight.FlightClient:
        tls = self._credentials.tls_arguments()
        if self._hostname is not None and self.endpoint.startswith(f"{TLS}://"):
            tls["override_hostname"] = self._hostname
        try:
            client = flight.FlightClient(self.endpoint, generic_options=_CHANNEL_OPTIONS, **tls)
        except (pa.ArrowException, OSError) as exc:
            raise from_arrow(exc) from exc
        return lifetime.held(client)

    def close(self) -> None:
        """Close the connection. Open streams continue to their end.

        No-op in a forked process, because the connection is the parent's.
        """
        self._closed = True
        # Running calls still refer to it. Closing it under a starting call would crash pyarrow.
        if lifetime.alive():
            self._opened = None

    @property
    def _flight(self) -> flight.FlightClient:
        """pyarrow's client for one call. Raises as :meth:`check`."""
        opened = self._checked()
        if self._credentials.tls_changed():
            try:
                # Streams of the former client continue and keep it alive.
                opened = self._opened = self._open()
            except InvalidRequest as exc:
                # A key that is replaced a moment after its certificate is another change.
                lifetime.CLIENT_LOG.warning("changed certificates are not used: %s", exc)
        return opened

    def check(self) -> None:
        """Raise :class:`InvalidRequest` if the client is closed, or the process was forked."""
        self._checked()

    def _checked(self) -> flight.FlightClient:
        lifetime.check()
        if (opened := self._opened) is None or self._closed:
            raise InvalidRequest("the client is closed: make another one, or close it later")
        return opened

    def put_stream(
        self, command: bytes, schema: pa.Schema, traceparent: str | None = None
    ) -> PutStream:
        """A stream for writing. Raises as :class:`PutStream`; the writer retries."""
        return PutStream(self._flight, command, schema, self._credentials, traceparent, self._load)

    def exchange(self, command: bytes, batch: pa.RecordBatch) -> bytes:
        """The daemon's answer to a call with a single batch; never retried.

        Raises:
            ClientError: If the daemon became unreachable, the outcome is unknown.
        """
        descriptor = flight.FlightDescriptor.for_command(command)
        span = tracing.begin("sync")
        options = self._options(self.timeout_s, span)
        try:
            with lifetime.calls, tracing.within(span):
                opened = self._flight.do_put(descriptor, batch.schema, options)
                writer, reader = map(lifetime.held, opened)
                with writer:
                    if batch.num_columns:
                        writer.write_batch(batch)
                    writer.done_writing()
                    answer = reader.read()
        except (pa.ArrowException, OSError, KeyError) as exc:
            raise from_arrow(exc) from exc
        if answer is None:
            raise UnknownOutcome("the daemon ended the call without an answer")
        return bytes(answer.to_pybytes())

    def read(self, ticket: bytes, timeout_s: float | None) -> pa.Table:
        """The whole answer to a query, within ``timeout_s``."""
        within_s = None if timeout_s is None else arguments.seconds("timeout_s", timeout_s)
        asked = flight.Ticket(ticket)
        span = tracing.begin_query(ticket)
        with tracing.within(span):
            return self._call(
                lambda: _read_all(self._flight.do_get(asked, self._reading(within_s, span)))
            )

    def stream(self, ticket: bytes, timeout_s: float | None = None) -> QueryStream:
        """The answer to a query, batch by batch; all of it within ``timeout_s``."""
        asked = flight.Ticket(ticket)
        span = tracing.begin_query(ticket)

        def opened() -> QueryStream:
            return QueryStream(self._flight.do_get(asked, self._reading(timeout_s, span)), span)

        try:
            return self._call(opened)
        except BaseException as exc:
            span.end(exc)
            raise

    def sql_stream(self, ticket: bytes, within_s: float | None) -> SqlStream:
        """The answer to an SQL statement, all of it within ``within_s``; never retried."""
        asked = flight.Ticket(ticket)
        span = tracing.begin("sql")

        def opened() -> SqlStream:
            return SqlStream(self._flight.do_get(asked, self._reading(within_s, span)), span)

        try:
            return self._call(opened, NEVER)
        except BaseException as exc:
            span.end(exc)
            raise

    def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name."""

        def listing() -> list[TableSummary]:
            found = []
            for info in self._flight.list_flights(options=self._options(self.timeout_s)):
                namespace, table = (part.decode() for part in info.descriptor.path)
                rows, size = int(info.total_records), int(info.total_bytes)
                found.append(TableSummary(namespace, table, rows, size))
            return sorted(found, key=lambda t: (t.namespace, t.table))

        return self._call(listing)

    def schema(self, namespace: str, table: str, *, once: bool = False) -> pa.Schema:
        """A table's Arrow schema. ``once`` disables retries."""
        descriptor = flight.FlightDescriptor.for_path(namespace, table)
        retry = NEVER if once else self.retry

        def schema_of() -> pa.Schema:
            # Not get_schema: there pyarrow raises no Flight errors, and refusals lose their code.
            return self._flight.get_flight_info(descriptor, self._options(self.timeout_s)).schema

        return self._call(schema_of, retry)

    def ping(self, within_s: float) -> None:
        """Return when the daemon has answered. Raises a ClientError; never retried."""
        # Not list_actions: see _read_all. Clusters call this in a thread of their own.
        request = flight.Action("store", encode({}))
        self._call(lambda: list(self._flight.do_action(request, self._options(within_s))), NEVER)

    def act(
        self,
        kind: str,
        body: Mapping[str, Any],
        timeout_s: float | None = None,
        *,
        once: bool = False,
    ) -> list[dict[str, Any]]:
        """The JSON results of an action. ``once`` disables retries."""
        request = flight.Action(kind, encode(body))
        within_s = self.timeout_s if timeout_s is None else timeout_s

        span = tracing.begin(f"action {kind}")

        def action() -> list[dict[str, Any]]:
            options = self._options(within_s, span)
            results: Iterable[flight.Result] = self._flight.do_action(request, options)
            decoded = [msgspec.json.decode(result.body.to_pybytes()) for result in results]
            if not decoded and kind in ("describe_table", "create_table", "status"):
                raise Unimplemented(f"the daemon gave no answer to {kind}")
            return decoded

        with tracing.within(span):
            return self._call(action, NEVER if once else self.retry)

    def process(self, within_s: float) -> Process | None:
        """The daemon's process, which identifies restarts; None if it is not reported."""
        try:
            found = self.act("store", {}, within_s, once=True)
        except ClientError:
            return None
        told = [found[0].get(name) for name in Process._fields] if found else []
        return Process(*map(str, told)) if told and None not in told else None

    def origins(
        self, origin: str | None = None, table: tuple[str, str] | None = None
    ) -> list[OriginState]:
        """The progress of each origin, or of one; empty if it is unknown."""
        namespace, name = table or (None, None)
        body = given({"origin": origin, "namespace": namespace, "table": name})
        try:
            results = self.act("origins", body)
        except NotFound:
            return []
        return msgspec.convert(results, list[OriginState])

    def _call(self, call: Callable[[], T], policy: RetryPolicy | None = None) -> T:
        """The result of ``call``, retried under a policy."""
        retry = RetryState(policy or self.retry, random.random)
        while True:
            token = self._credentials.token_number()
            try:
                with lifetime.calls:
                    return call()
            except (pa.ArrowException, OSError) as exc:
                error = self._credentials.explained(from_arrow(exc))
            except Exception as exc:
                error = from_arrow(exc)
                if error is not exc:
                    raise
            if isinstance(error, Unauthenticated) and token != self._credentials.token_number():
                continue  # the token was replaced during the call
            delay_s = retry.failed(error, time.monotonic())
            if delay_s is None:
                raise error
            time.sleep(delay_s)

    def _options(
        self, timeout_s: float | None, span: tracing.CallSpan = tracing.NO_SPAN
    ) -> flight.FlightCallOptions:
        return self._credentials.call_options(timeout_s, span.headers())

    def _reading(self, timeout_s: float | None, span: tracing.CallSpan) -> flight.FlightCallOptions:
        return self._credentials.call_options(timeout_s, span.headers(), _ALIGNED)


_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
"""gRPC's buffers begin anywhere. Arrow warns about each unaligned one that a ``group_by`` or a join
reads, so they are copied once.
"""


def _read_all(reader: flight.FlightStreamReader) -> pa.Table:
    """All rows of an answer.

    pyarrow's own ``read_all``, ``list_flights`` and ``list_actions`` take a call that the daemon
    cancels for a Ctrl-C and raise KeyboardInterrupt in the main thread; reading by chunks does not.
    """
    batches = []
    with contextlib.suppress(StopIteration):
        while True:
            batches.append(reader.read_chunk().data)
    return pa.Table.from_batches(batches, reader.schema)
