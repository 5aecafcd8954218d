"""The tracing sink tells traced operations that they are queued for the log, and answered.

Law of this file: where nothing is traced there is no decorator in the chain at all; an operation
that is not traced is handed on as it came.
"""

from __future__ import annotations

from ingester.dml.operation import Answer, DmlSink, Operation


class TracingSink:
    """A decorator of any :class:`ingester.dml.DmlSink`."""

    def __init__(self, inner: DmlSink) -> None:
        self._inner = inner

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Hand the operation on; the spans of its writes end with its answer."""
        traces = operation.traces
        if not traces:
            self._inner.submit(operation, answer)
            return
        for trace in traces:
            trace.submitted()

        def ended(done: Operation, error: BaseException | None) -> None:
            attributes = {
                "ingester.sequence": done.seq,
                "ingester.epoch": done.epoch,
                "ingester.duplicate": done.duplicate,
                "ingester.partitions": len(done.parts),
                "ingester.coalesced": done.operations,
            }
            for trace in traces:
                # Without an origin a write was answered when it was stored, before it was applied.
                at_ns = trace.stored_ns if done.origin is None else 0
                trace.answered(error, attributes, at_ns)
            answer(done, error)

        self._inner.submit(operation, ended)


def with_tracing(inner: DmlSink, traced: bool) -> DmlSink:
    """Decorate ``inner`` where something is traced, else return it."""
    return TracingSink(inner) if traced else inner
