"""Reads a call's trace context by pyarrow's middleware, before its handler runs.

Without tracing there is no middleware, and no call has a trace. A malformed header counts as
missing: no call is refused for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow.flight as fl

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace, Traces

KEY = "trace"


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


def tracing(traces: Traces | None) -> dict[str, TracingMiddleware]:
    """Return the middleware of a server; empty without tracing."""
    return {} if traces is None else {KEY: TracingMiddleware(traces)}


def trace_of(context: Any, traces: Traces | None) -> CallTrace | None:
    """Return the call's trace; None without tracing."""
    if traces is None or (said := context.get_middleware(KEY)) is None:
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
