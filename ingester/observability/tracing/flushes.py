"""A frozen buffer on its way into files: what its trace notes from the freeze to the commit.

    frozen ─ queue ─▶ ─ order ─▶ ─ put ─▶ ─ linger ─▶ ─ commit ─▶ committed

The span of the flush has links to the batches that it brings, up to 32; and each of these batches
has a span ``persist`` in its own trace, with a link to the flush.

Law of this file: loop only. A step is a name and the time at which it was over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry.trace import SpanContext

from ingester.observability.tracing.tracer import Attributes, Tracer, failed, trace_id_of

MAX_STEPS = 64
"""The steps that are kept: a store that is away for long makes many."""


class FlushTrace:
    """The trace of one frozen buffer.

    Args:
        writes: the spans of the batches with rows in it.
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
        """The trace's id, in hexadecimal digits; None where it is not recorded."""
        return None if self._span is None else trace_id_of(self._span.get_span_context())

    def step(self, name: str, error: BaseException | None = None) -> None:
        """Note that a step is over, well or with an error."""
        if len(self._steps) < MAX_STEPS:
            self._steps.append((name, time.time_ns(), error))

    def committed(self, attributes: Attributes) -> None:
        """Make the spans: a version has the buffer's files."""
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
