"""The traces of one call: the caller's span, and the spans of what the call does.

A part holds :class:`Traces`, or None where nothing is traced. A query's trace:

    parse ─▶ snapshot ─▶ scan ─▶ send ─▶ scan ─▶ send …

The first ``PART_SPANS`` parts of an answer have spans; the query's span has the sums of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from opentelemetry.trace import Span, SpanContext, SpanKind

from ingester.observability.tracing.tracer import (
    Attributes,
    Tracer,
    failed,
    remote_span,
    trace_id_of,
)
from ingester.observability.tracing.writes import (
    FlushTrace,
    StreamTraces,
    TracedGroup,
    WriteTrace,
    group_committed,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PART_SPANS = 16
"""The parts of an answer that have spans of their own."""
_SERVICE = {
    "rpc.system": "grpc",
    "rpc.service": "arrow.flight.protocol.FlightService",
    "db.system.name": "ingester",
}


class Traces:
    """Everything that a daemon traces. Any thread, but flushes and groups on the loop only.

    Args:
        close: sends the queued spans within a number of seconds; returns false if it took longer.
    """

    def __init__(self, tracer: Tracer, close: Callable[[float], bool] = lambda _: True) -> None:
        self._tracer = tracer
        self.close = close

    def call(self, traceparent: Sequence[str], tracestate: Sequence[str]) -> CallTrace:
        """The traces of a call with these headers."""
        return CallTrace(self._tracer, remote_span(traceparent, tracestate))

    def flush(
        self, table: tuple[str, str], attributes: Attributes, writes: Sequence[SpanContext]
    ) -> FlushTrace:
        """Begin the trace of a flush; one with rows of traced batches is always sampled."""
        return FlushTrace(self._tracer, {**_names(*table), **attributes}, writes)

    def group(
        self,
        writes: Sequence[WriteTrace],
        between_ns: tuple[int, int],
        operations: int,
        nbytes: int,
    ) -> None:
        """Record that the traced batches of one group are in the log and applied."""
        group_committed(self._tracer, writes, TracedGroup(between_ns, operations, nbytes))


class CallTrace:
    """The traces of one call, in the thread that serves it."""

    def __init__(self, tracer: Tracer, remote: SpanContext | None) -> None:
        self._tracer = tracer
        self._remote = remote
        self.trace_id = None if remote is None else trace_id_of(remote)
        """The id in the call's errors and log lines; None outside of a trace."""

    def stream(self, method: str, namespace: str, table: str, **attributes: str) -> StreamTraces:
        """The traces of a stream's batches; ``method`` is ``write`` or ``delete``."""
        said = {**_SERVICE, "rpc.method": "DoPut", **_names(namespace, table), **attributes}
        return StreamTraces(self._tracer, {**said, "db.operation.name": method}, self._remote)

    def query(self, namespace: str, table: str, scope: str, began_ns: int) -> QueryTrace | None:
        """Begin the trace of a query whose ticket is parsed; None where it is not sampled."""
        said = {**_SERVICE, "rpc.method": "DoGet", **_names(namespace, table)}
        span = self._tracer.begin(
            f"query {namespace}.{table}",
            {**said, "db.operation.name": "query", "ingester.scope": scope},
            parent=self._remote,
            kind=SpanKind.SERVER,
            at_ns=began_ns,
        )
        if span is None:
            return None
        self.trace_id = trace_id_of(span.get_span_context())
        trace = QueryTrace(self._tracer, span, began_ns)
        trace.step("parse")
        return trace

    @contextmanager
    def span(self, method: str, name: str, attributes: Attributes | None = None) -> Iterator[None]:
        """Trace the body as one span."""
        said = {**_SERVICE, "rpc.method": method, **(attributes or {})}
        span = self._tracer.begin(
            name, said, parent=self._remote, kind=SpanKind.SERVER, at_ns=time.time_ns()
        )
        if span is None:
            yield
            return
        self.trace_id = trace_id_of(span.get_span_context())
        try:
            yield
        except BaseException as exc:
            failed(span, exc)
            raise
        finally:
            span.end()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the trace's id to the log lines of the body."""
        if self.trace_id is None:
            yield
            return
        with structlog.contextvars.bound_contextvars(trace_id=self.trace_id):
            yield


class TracedPart(Protocol):
    """A part of an answer."""

    @property
    def batch(self) -> RecordBatch:
        """The rows."""

    @property
    def partition(self) -> str:
        """The partition of the rows."""

    @property
    def source(self) -> str:
        """The source of the rows: ``buffer`` or ``file``."""


P = TypeVar("P", bound=TracedPart)


class QueryTrace:
    """The trace of one query, whose span has begun."""

    def __init__(self, tracer: Tracer, span: Span, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._context = span.get_span_context()
        self._at_ns = began_ns
        self._rows = self._parts = self._scan_ns = self._send_ns = 0

    def step(self, name: str, attributes: Attributes | None = None) -> None:
        """Make the span of a step that ends now and began when the previous one ended."""
        began_ns, self._at_ns = self._at_ns, time.time_ns()
        between = (began_ns, self._at_ns)
        self._tracer.past(name, between, attributes or {}, parent=self._context)

    def watched(self, parts: Iterator[P]) -> Iterator[P]:
        """Yield the parts, and end the span after the last. Holds no part while it is sent."""
        self._at_ns = time.time_ns()
        try:
            while (part := next(parts, None)) is not None:
                held = [part]
                self._scanned(part)
                del part
                yield held.pop()
                self._sent()
        except BaseException as exc:
            failed(self._span, exc)
            raise
        finally:
            self._end()

    def refused(self, error: BaseException) -> None:
        """End the span of a query without an answer."""
        failed(self._span, error)
        self._span.end()

    def _scanned(self, part: TracedPart) -> None:
        began_ns = self._at_ns
        self._parts += 1
        rows = part.batch.num_rows
        self._rows += rows
        if self._parts <= PART_SPANS:
            facts = {"ingester.partition": part.partition, "ingester.source": part.source}
            self.step("scan", {**facts, "ingester.rows": rows})
        else:
            self._at_ns = time.time_ns()
        self._scan_ns += self._at_ns - began_ns

    def _sent(self) -> None:
        began_ns = self._at_ns
        if self._parts <= PART_SPANS:
            self.step("send")
        else:
            self._at_ns = time.time_ns()
        self._send_ns += self._at_ns - began_ns

    def _end(self) -> None:
        self._span.set_attributes(
            {
                "db.response.returned_rows": self._rows,
                "ingester.parts": self._parts,
                "ingester.scan": self._scan_ns / 1e9,
                "ingester.send": self._send_ns / 1e9,
            }
        )
        self._span.end()


def _names(namespace: str, table: str) -> dict[str, str]:
    return {"db.namespace": namespace, "db.collection.name": table}
