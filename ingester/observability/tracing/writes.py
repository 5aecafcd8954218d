"""The traces of a batch and of a flush.

    batch  begin ─ prepare ─▶ submitted ─ log ─▶ logged ─ apply ─▶ answered
                                           ┆ link
                                     group commit ┄ links to its traced batches, up to 32
    flush  frozen ─ queue ─▶ ─ order ─▶ ─ put ─▶ ─ linger ─▶ ─ commit ─▶ committed

Each method of a batch's trace is called by one thread at a time, in this order; a flush's on the
loop. A flush links to the batches whose rows it writes, up to 32, and each of these batches gets a
span ``persist`` in its own trace, with a link to the flush.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.trace import Span, SpanContext, SpanKind

from ingester.observability.tracing.tracer import (
    Attributes,
    Tracer,
    failed,
    remote_span,
    trace_id_of,
)

CALL_BATCHES = 32
"""The batches of one stream that belong to the trace of its call. A stream may stay open for days:
later batches have traces of their own, with a link."""
MAX_STEPS = 64
"""The most steps of a flush that are kept: an unreachable store causes many."""


class TracedGroup(NamedTuple):
    """One group of the log, written and synced together."""

    between_ns: tuple[int, int]
    """When its write began, and when it was durable."""
    operations: int
    nbytes: int


class WriteTrace:
    """The trace of one batch."""

    __slots__ = ("_submitted_ns", "_tracer", "began_ns", "context", "span", "stored_ns")

    def __init__(self, tracer: Tracer, span: Span, began_ns: int) -> None:
        self._tracer = tracer
        self.span = span
        self.context: SpanContext = span.get_span_context()
        self.began_ns = began_ns
        self._submitted_ns = began_ns
        self.stored_ns = 0

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal digits."""
        return trace_id_of(self.context)

    def submitted(self) -> None:
        """Note that the batch is prepared and queued for the log."""
        self._submitted_ns = time.time_ns()
        between = (self.began_ns, self._submitted_ns)
        self._tracer.past("prepare", between, {}, parent=self.context)

    def logged(self, group: TracedGroup, applied_ns: int, commit: SpanContext | None) -> None:
        """Note the batch's group commit, once it is applied."""
        began_ns, self.stored_ns = group.between_ns
        waited_s = max(0, began_ns - self._submitted_ns) / 1e9
        self._tracer.past(
            "log",
            (self._submitted_ns, self.stored_ns),
            {"ingester.log.wait": waited_s, "ingester.group.operations": group.operations},
            parent=self.context,
            links=() if commit is None else (commit,),
        )
        applied = (self.stored_ns, applied_ns)
        self._tracer.past("apply", applied, {}, parent=self.context)

    def answered(self, error: BaseException | None, attributes: Attributes, at_ns: int = 0) -> None:
        """End the span: the batch is answered."""
        self.span.set_attributes(attributes)
        if error is not None:
            failed(self.span, error)
        # The clock may have been set back meanwhile.
        self.span.end(max(self.began_ns, at_ns or time.time_ns()))


class StreamTraces:
    """The traces of one stream's batches, in the thread that reads it.

    Args:
        remote: the span of the call that opened the stream.
    """

    def __init__(self, tracer: Tracer, attributes: Attributes, remote: SpanContext | None) -> None:
        self._tracer = tracer
        self._attributes = attributes
        operation, table = attributes["db.operation.name"], attributes["db.collection.name"]
        self._name = f"{operation} {attributes['db.namespace']}.{table}"
        self._remote = remote
        self._left = 0 if remote is None else CALL_BATCHES

    def begin(self, traceparent: str | None = None) -> WriteTrace | None:
        """Begin the trace of a batch that was read; None where it is not sampled.

        Args:
            traceparent: the caller's span from the batch itself.
        """
        remote = None
        if traceparent is not None or self._left:
            remote = self._caller(traceparent)
        began_ns = time.time_ns()
        span = self._tracer.begin(
            self._name,
            self._attributes,
            parent=remote,
            links=() if remote is not None or self._remote is None else (self._remote,),
            kind=SpanKind.SERVER,
            at_ns=began_ns,
        )
        return None if span is None else WriteTrace(self._tracer, span, began_ns)

    def _caller(self, traceparent: str | None) -> SpanContext | None:
        remote = None if traceparent is None else remote_span((traceparent,))
        if remote is None and self._left:
            self._left -= 1
            remote = self._remote
        return remote


def group_committed(tracer: Tracer, writes: Sequence[WriteTrace], group: TracedGroup) -> None:
    """Record the group commit, and note it in each traced batch of the group."""
    attributes = {
        "ingester.group.operations": group.operations,
        "ingester.bytes": group.nbytes,
        "ingester.traced": len(writes),
    }
    links = [write.context for write in writes]
    commit = tracer.past("group commit", group.between_ns, attributes, parent=None, links=links)
    applied_ns = time.time_ns()
    for write in writes:
        write.logged(group, applied_ns, commit)


class FlushTrace:
    """The trace of one frozen buffer; it records nothing where it is not sampled.

    Args:
        writes: the spans of the traced batches with rows in the buffer.
    """

    def __init__(
        self, tracer: Tracer, attributes: Attributes, writes: Sequence[SpanContext]
    ) -> None:
        self._tracer = tracer
        self._writes = writes
        self._frozen_ns = time.time_ns()
        table = f"{attributes['db.namespace']}.{attributes['db.collection.name']}"
        self._span = tracer.begin(f"flush {table}", attributes, links=writes, at_ns=self._frozen_ns)
        self._steps: list[tuple[str, int, BaseException | None]] = []

    @property
    def trace_id(self) -> str | None:
        """The trace's id in hexadecimal digits; None where it is not sampled."""
        return None if self._span is None else trace_id_of(self._span.get_span_context())

    def step(self, name: str, error: BaseException | None = None) -> None:
        """Note the end of a step, with its error if it failed."""
        if self._span is not None and len(self._steps) < MAX_STEPS:
            self._steps.append((name, time.time_ns(), error))

    def committed(self, attributes: Attributes) -> None:
        """Make the spans: a manifest version has the buffer's files."""
        if self._span is None:
            return
        flush, began_ns = self._span.get_span_context(), self._frozen_ns
        for name, ended_ns, error in self._steps:
            span = self._tracer.begin(name, {}, parent=flush, at_ns=began_ns)
            if span is not None:
                if error is not None:
                    failed(span, error)
                span.end(ended_ns)
            began_ns = ended_ns
        ended_ns = time.time_ns()
        self._span.set_attributes(attributes)
        self._span.end(ended_ns)
        for write in self._writes:
            between = (self._frozen_ns, ended_ns)
            self._tracer.past("persist", between, attributes, parent=write, links=(flush,))
