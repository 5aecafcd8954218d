"""The caller's own traces: a span for each call and batch, and its place in them for the daemon.

    the program's span ─▶ ours (kind client) ─▶ ``traceparent`` ─▶ the daemon's

Law of this file: nothing is set up here, and nothing is imported that the program has not imported.
Whoever has a provider of OpenTelemetry gets spans; for everybody else a call costs one look into a
dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from .ack import Ack
from .errors import ClientError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer
    from pyarrow import RecordBatch

_SYSTEM = {"db.system.name": "ingester", "rpc.system": "grpc"}


class CallSpan:
    """A span of one call or batch, which has begun; or nothing, where nobody collects spans."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span | None = None) -> None:
        self._span = span
        self.traceparent: str | None = None if span is None else _traceparent(span)
        """The span, as W3C's Trace Context writes it; None where it is not recorded."""

    def end(self, error: BaseException | None = None, **attributes: int) -> None:
        """End the span, once; what comes later changes nothing."""
        if (span := self._span) is None:
            return
        self._span = None
        span.set_attributes(attributes)
        if error is not None:
            _fail(span, error)
        span.end()

    def until(self, ack: Ack) -> Ack:
        """End the span with a batch's answer, and return the promise of that."""
        if self._span is not None:
            ack.add_done_callback(lambda done: self.end(done.exception(0)))
        return ack

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that make a call part of the trace."""
        if self.traceparent is None:
            return []
        return [(b"traceparent", self.traceparent.encode())]


NO_SPAN = CallSpan()


class TracedTable:
    """The table that a writer writes to, as its spans say it."""

    __slots__ = ("_first", "_named", "_newest")

    def __init__(self, operation: str, namespace: str, table: str) -> None:
        self._named = (operation, namespace, table)
        self._first: str | None = None
        self._newest: str | None = None

    def begin(self, batch: RecordBatch) -> CallSpan:
        """Begin the span of a batch."""
        if "opentelemetry.trace" not in sys.modules:
            return NO_SPAN
        span = begin_for(*self._named, ingester__rows=batch.num_rows)
        if self._newest is None:
            self._first = span.traceparent
        self._newest = span.traceparent
        return span

    def of_stream(self) -> str | None:
        """The span for a stream that is opened: the first batch's, and the newest one's later."""
        first, self._first = self._first, None
        return first or self._newest


def begin(name: str, **attributes: str | int) -> CallSpan:
    """Begin a span below the program's current one.

    Args:
        attributes: with ``__`` for each dot of their names.
    """
    tracer = _tracer()
    if tracer is None:
        return NO_SPAN
    from opentelemetry.trace import SpanKind

    named = {key.replace("__", "."): value for key, value in attributes.items()}
    span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes={**_SYSTEM, **named})
    return CallSpan(span)


def begin_for(operation: str, namespace: str, table: str, **attributes: str | int) -> CallSpan:
    """Begin a span of what is done with a table."""
    if "opentelemetry.trace" not in sys.modules:
        return NO_SPAN
    names: dict[str, Any] = {
        "db__operation__name": operation,
        "db__namespace": namespace,
        "db__collection__name": table,
    }
    return begin(f"{operation} {namespace}.{table}", **names, **attributes)


def begin_query(ticket: bytes) -> CallSpan:
    """Begin a span of a query, by its ticket."""
    if _tracer() is None:  # a ticket may be long
        return NO_SPAN
    asked = msgspec.json.decode(ticket)
    return begin_for("query", str(asked.get("namespace")), str(asked.get("table")))


@contextmanager
def within(span: CallSpan) -> Iterator[CallSpan]:
    """End a span with the block, and say how that failed if it did."""
    try:
        yield span
    except BaseException as exc:
        span.end(exc)
        raise
    span.end()


def _tracer() -> Tracer | None:
    """The program's tracer; None where it has none. Nobody has one without importing this."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("ingester.client")


def _traceparent(span: Span) -> str | None:
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent")


def _fail(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    code = error.code if isinstance(error, ClientError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, str(error)[:500]))
