"""The tracing sink makes a span of every operation, where OpenTelemetry is set up.

Law of this file: without the ``otel`` extra, or without a tracer provider of the operator's, there
is no decorator in the chain at all.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ingester.dml.operation import Operation
from ingester.dml.sink import Answer, DmlSink


class TracingSink:
    """A decorator of any :class:`ingester.dml.DmlSink`."""

    def __init__(self, tracer: Any, inner: DmlSink) -> None:
        self._tracer = tracer
        self._inner = inner

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Hand the operation on; its span ends with its answer."""
        span = self._tracer.start_span(
            "write",
            attributes={
                "ingester.namespace": operation.table[0],
                "ingester.table": operation.table[1],
                "ingester.rows": operation.rows,
                "ingester.partitions": len(operation.parts),
            },
        )

        def ended(done: Operation, error: BaseException | None) -> None:
            span.set_attribute("ingester.sequence", done.seq)
            if error is not None:
                span.record_exception(error)
            span.end()
            answer(done, error)

        self._inner.submit(operation, ended)


def with_tracing(inner: DmlSink) -> DmlSink:
    """Decorate ``inner`` if somebody collects spans, else return it."""
    if importlib.util.find_spec("opentelemetry") is None:
        return inner
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return inner
    return TracingSink(trace.get_tracer("ingester"), inner)
