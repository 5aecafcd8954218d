"""The counts of spans, for the status and for ``/metrics``.

Law of this file: values, and a collector that reads them at a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SPAN_BYTES = 3 << 10
"""About what a span that waits has in memory."""


class SpanCounts(NamedTuple):
    """What became of the spans so far, and how many wait."""

    sent: int = 0
    failed: int = 0
    """Spans that the receiver did not take, or that found none."""
    dropped: int = 0
    """Spans that found ``tracing.queue_spans`` waiting."""
    waiting: int = 0


class SpanMetrics(Collector):
    """Shows the counts of spans in a scrape; zeros where nothing is traced."""

    def __init__(self, counts: Callable[[], SpanCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Give the families."""
        counts = self._counts()
        spans = CounterMetricFamily(
            "ingester_trace_spans",
            "Spans by what became of them: sent, failed, dropped because too many waited",
            labels=["outcome"],
        )
        for outcome in ("sent", "failed", "dropped"):
            spans.add_metric([outcome], getattr(counts, outcome))
        yield spans
        yield GaugeMetricFamily(
            "ingester_trace_spans_waiting", "Spans that wait to be sent", counts.waiting
        )
