"""A call of a client: the span that the client has sent with it, and the traces that it begins.

Law of this file: one object for each call, in the thread that serves it. A part holds
:class:`Traces`, or None where nothing is traced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from opentelemetry.trace import SpanContext, SpanKind

from ingester.observability.tracing.counts import SpanCounts
from ingester.observability.tracing.flushes import FlushTrace
from ingester.observability.tracing.queries import QueryTrace
from ingester.observability.tracing.tracer import (
    Attributes,
    Tracer,
    failed,
    remote_span,
    trace_id_of,
)
from ingester.observability.tracing.writes import (
    GroupCommit,
    StreamTraces,
    WriteTrace,
    group_committed,
)

_SERVICE = {
    "rpc.system": "grpc",
    "rpc.service": "arrow.flight.protocol.FlightService",
    "db.system.name": "ingester",
}


class Traces:
    """Everything that a daemon traces. Any thread, but for flushes and groups: the loop's."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def call(self, traceparent: Sequence[str], tracestate: Sequence[str]) -> CallTrace:
        """The traces of a call with these headers."""
        return CallTrace(self._tracer, remote_span(traceparent, tracestate))

    def flush(
        self, table: tuple[str, str], attributes: Attributes, writes: Sequence[SpanContext]
    ) -> FlushTrace | None:
        """Begin the trace of a flush: of one with rows of traced batches, or by chance."""
        if not writes and not self._tracer.wanted():
            return None
        return FlushTrace(self._tracer, {**_names(*table), **attributes}, writes)

    def group(
        self,
        writes: Sequence[WriteTrace],
        between_ns: tuple[int, int],
        operations: int,
        nbytes: int,
    ) -> None:
        """Tell traced batches of one group that the log has them, and that they are applied."""
        group_committed(self._tracer, writes, GroupCommit(between_ns, operations, nbytes))

    def counts(self) -> SpanCounts:
        """Count what became of the spans so far."""
        return self._tracer.counts()

    def close(self, within_s: float) -> int:
        """Send what waits, but not for longer than that; returns the spans lost. Blocks."""
        return self._tracer.close(within_s)


class CallTrace:
    """What is traced of one call."""

    def __init__(self, tracer: Tracer, remote: SpanContext | None) -> None:
        self._tracer = tracer
        self._remote = remote
        self.trace_id = None if remote is None else trace_id_of(remote)
        """The id that the call's errors and log lines name; None where it is in no trace."""

    def stream(self, method: str, namespace: str, table: str, **attributes: str) -> StreamTraces:
        """The traces of a stream's batches; ``method`` is ``write`` or ``delete``."""
        said = {**_SERVICE, "rpc.method": "DoPut", **_names(namespace, table), **attributes}
        return StreamTraces(self._tracer, {**said, "db.operation.name": method}, self._remote)

    def query(self, namespace: str, table: str, scope: str, began_ns: int) -> QueryTrace | None:
        """Begin the trace of a query whose ticket is read; None for one that is not traced."""
        if not self._tracer.wanted(self._remote):
            return None
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
        """Trace what is done inside as one span, if the call is traced."""
        span = None
        if self._tracer.wanted(self._remote):
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
        """Have the log's lines name the trace, of what is done inside."""
        if self.trace_id is None:
            yield
            return
        with structlog.contextvars.bound_contextvars(trace_id=self.trace_id):
            yield


def _names(namespace: str, table: str) -> dict[str, str]:
    return {"db.namespace": namespace, "db.collection.name": table}
