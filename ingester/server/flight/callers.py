"""The caller: the token and trace of a call, the origins that it may use, the end of its permit.

    before the handler    middleware reads the bearer's token, and the caller's trace context
    the handler           :func:`permit_of`, then the right of the method
    DoPut                 :class:`OriginNames` claims the origin's name
                          :func:`permitted` renews the permit with each message
    calls that wait       :func:`permitted_wait` ends the wait with the permit

Handshake, DoPut, DoExchange and GetSchema are refused by the middleware: a handshake has no handler
of ours, DoPut is refused before any of its stream is read, GetSchema because pyarrow drops the
status of its handler's errors. The handlers of the other methods refuse by themselves, as they know
the peer, which the audit log records. A handler takes its permit from :func:`permit_of` only;
without middleware nothing is permitted (tests/server/auth/test_every_need,
tests/server/auth/test_open_streams).

A malformed trace context counts as missing: no call is refused for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl
import trio

from ingester.errors import AccessDenied, ClientGone, NotAuthenticated
from ingester.schema.limits import check_table_name
from ingester.server.auth.access import Access, Permit
from ingester.server.auth.rights import NOBODY
from ingester.server.flight.handshake import as_bearer
from ingester.server.flight.put_messages import send_answer
from ingester.server.flight.refusals import flight_error
from ingester.server.flight.requests import CopyCommand, SyncCommand, WriteCommand
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.tables.origin_lookup import KnownOrigins

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace, Traces

CALLER, GREETING, TRACE, NAMESPACE = "caller", "greeting", "trace", "namespace"
"""The names of the middleware."""
NAMESPACE_HEADER = "schema"
"""The default namespace of a Flight SQL client; in ADBC the option
``adbc.flight.sql.rpc.call_header.schema``, in the JDBC driver's address ``?schema=shop``."""
_AT_ONCE = {
    fl.FlightMethod.HANDSHAKE: "handshake",
    fl.FlightMethod.DO_PUT: "put",
    fl.FlightMethod.DO_EXCHANGE: "exchange",
    fl.FlightMethod.GET_SCHEMA: "schema",
}


class _Greeted(fl.ServerMiddleware):  # type: ignore[misc]
    """The answer to a handshake with a name and a password."""

    def sending_headers(self) -> dict[str, str]:
        """Return the header that the client sends with its further calls; nobody reads it."""
        return {"authorization": "Bearer none"}


class GreetingMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Answers handshakes where there are no tokens: ADBC gives up without a header to send."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Greeted | None:
        """Answer a handshake with a name and a password."""
        scheme = next(iter(headers.get("authorization", ())), "").partition(" ")[0]
        is_asked = info.method == fl.FlightMethod.HANDSHAKE and scheme.lower() == "basic"
        return _Greeted() if is_asked else None


class _Admitted(fl.ServerMiddleware):  # type: ignore[misc]
    """The permit of a call, or why it has none, for its handler."""

    def __init__(self, found: Permit | NotAuthenticated, answered: str | None = None) -> None:
        self.found = found
        self._answered = answered

    def sending_headers(self) -> dict[str, str]:
        """Return the header that the client shall send with its further calls, if any."""
        return {} if self._answered is None else {"authorization": self._answered}


class CallerMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Reads the token of each call.

    Args:
        access: the callers and their rights.
        refused: receives the ``code`` of a refusal before the handler.
    """

    def __init__(self, access: Access, refused: Callable[[str], object]) -> None:
        super().__init__()
        self._access = access
        self._refused = refused

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Admitted:
        """Read the call's token."""
        header = headers.get("authorization", ())
        try:
            if info.method == fl.FlightMethod.HANDSHAKE:
                header = as_bearer(header)
                return _Admitted(self._access.admit(header), header[0])
            return _Admitted(self._access.admit(header))
        except NotAuthenticated as exc:
            asked = _AT_ONCE.get(info.method)
            if asked is None:
                return _Admitted(exc)
            self._refused("unauthenticated")
            self._access.note_refusal(exc, NOBODY, "", asked)
            raise flight_error(exc) from None
        except Exception as exc:
            raise flight_error(exc) from None


class _CallMiddleware(fl.ServerMiddleware):  # type: ignore[misc]
    """The trace of a call, for its handler."""

    def __init__(self, trace: CallTrace) -> None:
        self.trace = trace


class TracingMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Reads ``traceparent`` and ``tracestate`` of each call."""

    def __init__(self, traces: Traces) -> None:
        super().__init__()
        self._traces = traces

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _CallMiddleware:
        """Begin the call's trace."""
        said = headers.get("traceparent", ()), headers.get("tracestate", ())
        return _CallMiddleware(self._traces.call(*said))


class _Namespace(fl.ServerMiddleware):  # type: ignore[misc]
    """The default namespace of a call, for its handler."""

    def __init__(self, name: str) -> None:
        self.name = name


class NamespaceMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Reads the header ``schema`` of each call."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Namespace | None:
        """Keep the namespace, if the call names one."""
        named = headers.get(NAMESPACE_HEADER)
        return _Namespace(named[0]) if named and named[0] else None


def middleware(services: Services) -> dict[str, Any]:
    """Return the middleware of a server."""
    found: dict[str, Any] = {NAMESPACE: NamespaceMiddleware()}
    if services.access.enabled:
        found[CALLER] = CallerMiddleware(services.access, services.metrics.refused)
    else:
        found[GREETING] = GreetingMiddleware()
    if services.traces is not None:
        found[TRACE] = TracingMiddleware(services.traces)
    return found


def permit_of(context: Any, access: Access, asked: str) -> Permit:
    """Return the permit of a call. Raises :class:`NotAuthenticated` where there is none."""
    if not access.enabled:
        return access.nobody(context.peer())
    held = context.get_middleware(CALLER)
    found = NotAuthenticated("the call has no caller") if held is None else held.found
    if isinstance(found, NotAuthenticated):
        access.note_refusal(found, NOBODY, context.peer(), asked)
        raise found
    permit: Permit = found
    permit.peer = context.peer()
    return permit


def default_namespace(context: Any) -> str | None:
    """Return the namespace of names of tables without one, if the call has such a header.

    Raises:
        BadRequest: it is not a name.
    """
    held = context.get_middleware(NAMESPACE)
    return None if held is None else check_table_name("namespace", held.name)


def trace_of(context: Any, traces: Traces | None) -> CallTrace | None:
    """Return the call's trace; None without tracing."""
    if traces is None or (said := context.get_middleware(TRACE)) is None:
        return None
    trace: CallTrace = said.trace
    return trace


@contextmanager
def spanned(trace: CallTrace | None, method: str, name: str, *table: str) -> Iterator[None]:
    """Run the block in a span if the call is traced.

    Args:
        table: namespace and name of the table.
    """
    with contextlib.ExitStack() as inside:
        if trace is not None:
            names = zip(("db.namespace", "db.collection.name"), table, strict=False)
            inside.enter_context(trace.span(method, name, dict(names)))
            inside.enter_context(trace.named())
        yield


_SHOWN = 128


class OriginNames:
    """Reserves names of origins for callers that may write wherever the origin writes. Any thread.

    A name is claimed before anything of its stream is read, while the stream is open. Without
    tokens every caller may use every name.
    """

    def __init__(self, access: Access, known: KnownOrigins, portal: Portal) -> None:
        self._access = access
        self._known = known
        self._portal = portal

    @contextmanager
    def claimed(
        self, permit: Permit, command: WriteCommand | SyncCommand | CopyCommand
    ) -> Iterator[None]:
        """Claim the stream's origin inside the block.

        Raises:
            AccessDenied: the origin writes to a namespace where the caller may not.
        """
        origin = None if isinstance(command, CopyCommand) else command.origin
        if origin is None or not self._access.enabled:
            yield
            return
        reads = isinstance(command, SyncCommand)
        if not self._portal.call(self._claim, permit, origin, command.namespace, reads):
            error = AccessDenied(f"origin {origin[:_SHOWN]!r} is taken: choose another name")
            permit.refuse(error, f"put {command.type}", command.namespace, command.table)
        try:
            yield
        finally:
            self._portal.post(self._known.unclaim, origin, command.namespace)

    async def _claim(self, permit: Permit, origin: str, namespace: str, reads: bool) -> bool:
        if reads:
            await self._known.find(origin)  # as replication does with its first message
        caller = permit.caller
        return self._known.claim(origin, namespace, lambda each: caller.may("write", each))


class _Reader:
    """pyarrow's reader of a call; renews the permit with each message."""

    def __init__(self, reader: Any, permit: Permit) -> None:
        self._reader = reader
        self._permit = permit
        self.told_to_end = False

    @property
    def schema(self) -> Any:
        """The schema that the client sent."""
        return self._reader.schema

    def read_chunk(self) -> Any:
        """Return the next message. Raises :class:`NotAuthenticated`, :class:`AccessDenied`."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            if self.told_to_end:
                self._permit.renew()
            raise
        self._permit.renew()
        return chunk


class _Writer:
    """pyarrow's writer of a call, for two threads: the handler, and the end of the permit."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._is_over = False

    def write(self, answer: pa.Buffer) -> None:
        """Send one PutResult; nothing once the call is over."""
        with self._lock:
            if not self._is_over:
                self._writer.write(answer)

    def end(self) -> None:
        """Stop writing; returns when no thread writes: pyarrow frees the writer with the call."""
        with self._lock:
            self._is_over = True


@contextmanager
def permitted(
    services: Services, permit: Permit, reader: Any, writer: Any
) -> Iterator[tuple[Any, Any]]:
    """Give reader and writer of a call that renew its permit; unchanged without tokens.

    When the permit ends while no message comes, the client gets an empty answer, which makes it end
    the call.
    """
    access = services.access
    if not access.enabled:
        yield reader, writer
        return
    messages, answers = _Reader(reader, permit), _Writer(writer)

    def wake() -> None:
        with contextlib.suppress(ClientGone):
            send_answer(answers, b"")

    def end() -> None:
        messages.told_to_end = True
        threading.Thread(target=wake, name="end-of-permit", daemon=True).start()

    with access.holding(permit, end):
        try:
            yield messages, answers
        finally:
            # Waits for the empty answer where the client reads nothing.
            answers.end()


async def permitted_wait(
    access: Access, permit: Permit, wait: Callable[[], Awaitable[None]]
) -> None:
    """Wait while the call is permitted. On the loop.

    Raises:
        NotAuthenticated, AccessDenied: it is not any longer.
    """
    if not access.enabled:
        await wait()
        return
    scope, loop = trio.CancelScope(), trio.lowlevel.current_trio_token()
    with access.holding(permit, lambda: loop.run_sync_soon(scope.cancel)), scope:
        await wait()
    permit.renew()
