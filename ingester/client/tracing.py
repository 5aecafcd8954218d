"""Spans for calls and batches in the program's own traces, passed on to the daemon.

    the program's span ─▶ the client's ─▶ ``traceparent`` ─▶ the daemon's

Nothing is configured here, and OpenTelemetry is used only if the program has imported it and set a
provider. Otherwise a call costs one dictionary lookup.
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
    """A started span of one call or batch; without effect if spans are not collected."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span | None = None) -> None:
        self._span = span
        self.traceparent: str | None = None if span is None else _traceparent(span)
        """The span in W3C Trace Context form; None if it is not recorded."""

    def end(self, error: BaseException | None = None, **attributes: int) -> None:
        """End the span; later calls have no effect."""
        if (span := self._span) is None:
            return
        self._span = None
        span.set_attributes(attributes)
        if error is not None:
            _fail(span, error)
        span.end()

    def until(self, ack: Ack) -> Ack:
        """End the span with a batch's answer; returns ``ack``."""
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
    """The table of a writer, for its spans."""

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
        """The span for a new stream: the first batch's, later the newest one's."""
        first, self._first = self._first, None
        return first or self._newest


def begin(name: str, **attributes: str | int) -> CallSpan:
    """Begin a span below the program's current one.

    Args:
        attributes: ``__`` stands for a dot in a name.
    """
    tracer = _tracer()
    if tracer is None:
        return NO_SPAN
    from opentelemetry.trace import SpanKind

    named = {key.replace("__", "."): value for key, value in attributes.items()}
    span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes={**_SYSTEM, **named})
    return CallSpan(span)


def begin_for(operation: str, namespace: str, table: str, **attributes: str | int) -> CallSpan:
    """Begin a span of an operation on a table."""
    if "opentelemetry.trace" not in sys.modules:
        return NO_SPAN
    names: dict[str, Any] = {
        "db__operation__name": operation,
        "db__namespace": namespace,
        "db__collection__name": table,
    }
    return begin(f"{operation} {namespace}.{table}", **names, **attributes)


def begin_query(ticket: bytes) -> CallSpan:
    """Begin the span of a query."""
    if _tracer() is None:  # decoding a long ticket costs time
        return NO_SPAN
    asked = msgspec.json.decode(ticket)
    return begin_for("query", str(asked.get("namespace")), str(asked.get("table")))


@contextmanager
def within(span: CallSpan) -> Iterator[CallSpan]:
    """End a span with the block, with its error if it raises."""
    try:
        yield span
    except BaseException as exc:
        span.end(exc)
        raise
    span.end()


def _tracer() -> Tracer | None:
    """The program's tracer, or None."""
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
