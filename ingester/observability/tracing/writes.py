"""A batch on its way: what its trace notes, from the thread that reads it to the loop.

    begin ─ prepare ─▶ submitted ─ log ─▶ logged ─ apply ─▶ answered
                                    ┆ link
                              group commit ┄ links to the batches that are traced, up to 32

Law of this file: each method is called by one thread at a time, in this order. Spans below that of
the batch are made when they are over.
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
"""The batches of one stream that belong to the trace of whoever opened it: a stream may stay open
for days. Later ones have traces of their own, with a link."""


class GroupCommit(NamedTuple):
    """One group of the log, which was written and synced together."""

    between_ns: tuple[int, int]
    """The times at which its write began, and at which it was stored."""
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
        """The trace's id, in hexadecimal digits."""
        return trace_id_of(self.context)

    def submitted(self) -> None:
        """Note that the batch is prepared, and queued for the log."""
        self._submitted_ns = time.time_ns()
        between = (self.began_ns, self._submitted_ns)
        self._tracer.past("prepare", between, {}, parent=self.context)

    def logged(self, group: GroupCommit, applied_ns: int, commit: SpanContext | None) -> None:
        """Note the group that the batch was written with, once it is applied."""
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
    """The traces of one stream's batches. In the thread that reads it.

    Args:
        remote: the span of whoever opened the stream.
    """

    def __init__(self, tracer: Tracer, attributes: Attributes, remote: SpanContext | None) -> None:
        self._tracer = tracer
        self._attributes = attributes
        operation, table = attributes["db.operation.name"], attributes["db.collection.name"]
        self._name = f"{operation} {attributes['db.namespace']}.{table}"
        self._remote = remote
        self._left = 0 if remote is None else CALL_BATCHES

    def begin(self, traceparent: str | None = None) -> WriteTrace | None:
        """Begin the trace of a batch that was read; None for one that is not traced.

        Args:
            traceparent: what the batch itself says of its caller's span.
        """
        remote = None
        if traceparent is not None or self._left:
            remote = self._caller(traceparent)
        if not self._tracer.wanted(remote):
            return None
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


def group_committed(tracer: Tracer, writes: Sequence[WriteTrace], group: GroupCommit) -> None:
    """Tell the batches of a group that are traced that they are in the log, and applied."""
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
