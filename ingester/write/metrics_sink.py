"""The metrics sink counts operations and times their answers; it changes nothing."""

from __future__ import annotations

import time

from ingester.dml.operation import Answer, DmlSink, Operation
from ingester.observability.history import RateCounter
from ingester.observability.metrics import Metrics


class MetricsSink:
    """A decorator of any :class:`ingester.dml.DmlSink`."""

    def __init__(self, metrics: Metrics, rates: RateCounter, inner: DmlSink) -> None:
        self._metrics = metrics
        self._rates = rates
        self._inner = inner

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Hand the operation on, and count its answer."""
        began = time.perf_counter()

        def counted(done: Operation, error: BaseException | None) -> None:
            if error is None:
                self._metrics.acknowledged(time.perf_counter() - began, done.operations)
                table = self._metrics.table(*done.table)
                if done.duplicate:
                    table.saw_duplicate()
                else:
                    table.wrote(done.rows, done.nbytes, done.operations)
                    self._rates.add(rows=done.rows, nbytes=done.nbytes, operations=done.operations)
            answer(done, error)

        self._inner.submit(operation, counted)
