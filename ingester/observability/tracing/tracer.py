"""Who is traced, and how a span is made: here parts of the daemon meet OpenTelemetry.

    wanted(remote)   the caller has decided ─▶ as it says, up to ``max_asked_per_s``
                     nobody has             ─▶ one of 1 / ``sample``
    begin            a span that is under way; None where a sampler of the environment says no
    past             a span that is over, between two times that were noted

Law of this file: any thread, and nobody waits. Times are nanoseconds since 1970, as
``time.time_ns`` gives them.

Source: W3C Trace Context (``traceparent``); OpenTelemetry's semantic conventions for databases
(``db.*``) and remote calls (``rpc.*``).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ingester.errors import ClientGone, IngesterError, kind_of
from ingester.observability.tracing.counts import SpanCounts
from ingester.secret_texts import masked

Attributes = Mapping[str, str | int | float | bool]

MAX_LINKS = 32
"""The spans that one span names as those which it is about."""
MESSAGE_CHARS = 500
"""The length that an error's message has in a span."""
_PROPAGATOR = TraceContextTextMapPropagator()


class Sampling(NamedTuple):
    """The rule by which calls are traced."""

    share: float | None
    """The share of those about which no caller has decided; None leaves it to the SDK's sampler."""
    max_asked_per_s: int


class Tracer:
    """Makes spans. Any thread.

    Args:
        counts: counts the spans that were sent.
        close: sends what waits and closes the exporter; blocks.
    """

    def __init__(
        self,
        tracer: trace.Tracer,
        sampling: Sampling,
        counts: Callable[[], SpanCounts] = SpanCounts,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracer = tracer
        self._share = 1.0 if sampling.share is None else sampling.share
        self._asked = _PerSecond(sampling.max_asked_per_s)
        self.counts = counts
        self._close = close

    def wanted(self, remote: SpanContext | None = None) -> bool:
        """Whether the next batch or call is traced, given what its caller says of its own span."""
        if remote is not None:
            if not remote.trace_flags.sampled:
                return False
            if self._asked.take():
                return True
        return self._share > 0 and random.random() < self._share

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
        """Begin a span; None where the SDK's sampler does not want it."""
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
        """Make a span of two times that were noted; None where nothing was made."""
        began, ended = between_ns
        span = self.begin(name, attributes, parent=parent, links=links, at_ns=began)
        if span is None:
            return None
        span.end(max(began, ended))
        return span.get_span_context()

    def close(self, within_s: float) -> int:
        """Send what waits, but not for longer than that. Blocks.

        Returns:
            The spans that waited and were not sent: they are lost.
        """
        failed = self.counts().failed
        # A daemon: a receiver that hangs keeps neither the stop nor the process.
        thread = threading.Thread(target=self._close, name="tracing-close", daemon=True)
        thread.start()
        thread.join(within_s)
        left = self.counts()
        return left.failed - failed + left.waiting


class _PerSecond:
    """Lets so many through in each second. Any thread; a race may let one more through."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._second = 0
        self._taken = 0

    def take(self) -> bool:
        """Whether there is room in this second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._taken = second, 0
        if self._taken >= self._most:
            return False
        self._taken += 1
        return True


def remote_span(traceparent: Sequence[str], tracestate: Sequence[str] = ()) -> SpanContext | None:
    """Return the caller's span from its headers; None where it has none, or no valid one."""
    if len(traceparent) != 1:
        return None
    carrier = {"traceparent": traceparent[0], "tracestate": ",".join(tracestate)}
    found = trace.get_current_span(_PROPAGATOR.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def trace_id_of(span: SpanContext) -> str:
    """Return the trace's id as people search for it: 32 hexadecimal digits."""
    return format(span.trace_id, "032x")


def failed(span: Span, error: BaseException) -> None:
    """Say in a span why it failed: the error's code and its message, no traceback.

    Where the client has gone nothing has failed: it says ``ingester.cancelled``.
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
