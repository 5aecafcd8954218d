"""Makes spans: the one place where parts of the daemon meet OpenTelemetry's API.

Any thread may make spans, and none waits. Times are nanoseconds since 1970, as ``time.time_ns``
gives them.

Source: W3C Trace Context (``traceparent``); OpenTelemetry's semantic conventions for databases
(``db.*``) and remote calls (``rpc.*``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ingester.errors import ClientGone, IngesterError, kind_of
from ingester.secret_texts import masked

Attributes = Mapping[str, str | int | float | bool]

MAX_LINKS = 32
"""The most links of a span."""
MESSAGE_CHARS = 500
"""The longest error message in a span."""
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracer:
    """Makes spans that the sampler wants. Any thread."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(
        self,
        name: str,
        attributes: Attributes,
        *,
        parent: SpanContext | None = None,
        links: Sequence[SpanContext] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        at_ns: int | None = None,
    ) -> Span | None:
        """Begin a span; None where the sampler does not want it."""
        span = self._tracer.start_span(
            name,
            context=Context() if parent is None else _context(parent),
            kind=kind,
            attributes=attributes,
            links=[Link(one) for one in links[:MAX_LINKS]],
            start_time=at_ns,
        )
        return span if span.is_recording() else None

    def past(
        self,
        name: str,
        between_ns: tuple[int, int],
        attributes: Attributes,
        *,
        parent: SpanContext | None,
        links: Sequence[SpanContext] = (),
    ) -> SpanContext | None:
        """Make a span of two noted times; None where the sampler does not want it."""
        began, ended = between_ns
        span = self.begin(name, attributes, parent=parent, links=links, at_ns=began)
        if span is None:
            return None
        span.end(max(began, ended))
        return span.get_span_context()


def remote_span(traceparent: Sequence[str], tracestate: Sequence[str] = ()) -> SpanContext | None:
    """Return the caller's span from its headers; None without a valid one."""
    if len(traceparent) != 1:
        return None
    carrier = {"traceparent": traceparent[0], "tracestate": ",".join(tracestate)}
    found = trace.get_current_span(_PROPAGATOR.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def trace_id_of(span: SpanContext) -> str:
    """Return the trace's id as 32 hexadecimal digits."""
    return format(span.trace_id, "032x")


def failed(span: Span, error: BaseException) -> None:
    """Set a span's error: its code and its message, without a traceback.

    A client that has disconnected is no error: the span gets ``ingester.cancelled``.
    """
    if isinstance(error, (ClientGone, GeneratorExit)):
        span.set_attribute("ingester.cancelled", True)
        return
    code, message = type(error).__name__, str(error)
    if isinstance(error, IngesterError):
        code, message = kind_of(error).code, error.message
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, masked(message)[:MESSAGE_CHARS]))


def _context(parent: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
