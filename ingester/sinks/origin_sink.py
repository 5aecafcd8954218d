"""Duplicates stop here: an origin's sequence is applied once.

Law of this file: a repeat of something durable is answered at once as a duplicate; a repeat of
something under way waits for the first copy, and takes its place if that one fails.
"""

from __future__ import annotations

from ingester.origins import Origins
from ingester.sinks.interface import Answer, DmlSink
from ingester.sinks.operation import Operation


class OriginSink:
    """Judges sequences; a :class:`ingester.sinks.DmlSink`."""

    def __init__(self, origins: Origins, inner: DmlSink) -> None:
        self._origins = origins
        self._inner = inner

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Hand on what is new, answer what is not."""
        name, sequence = operation.origin, operation.origin_sequence
        if name is None or sequence is None:
            self._inner.submit(operation, answer)
            return
        key = operation.table.key
        if self._origins.is_applied(name, key, sequence):
            operation.duplicate = True
            answer(operation, None)
            return
        if not self._origins.begin(name, key, sequence):
            self._origins.await_first(
                name, key, sequence, lambda error: self._after_first(operation, answer, error)
            )
            return
        self._inner.submit(operation, lambda op, error: self._end(op, answer, error))

    def _after_first(
        self, operation: Operation, answer: Answer, error: BaseException | None
    ) -> None:
        if error is None:
            operation.duplicate = True
            answer(operation, None)
        else:
            self.submit(operation, answer)

    def _end(self, operation: Operation, answer: Answer, error: BaseException | None) -> None:
        assert operation.origin is not None
        assert operation.origin_sequence is not None
        waiting = self._origins.end(
            operation.origin, operation.table.key, operation.origin_sequence, error
        )
        answer(operation, error)
        for fate in waiting:
            fate(error)
