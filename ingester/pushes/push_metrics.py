"""What a controller has seen and done, as metrics, beside those of its hooks.

Law of this file: nothing is counted here; a scrape reads what a :class:`Controller` has counted.
Labels are the statuses alone, so that pushes that come and go leave no series behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.pushes.controller import Controller
from ingester.pushes.status import Status


class PushMetrics(Collector):
    """Collects the counts of a controller; register it with a ``CollectorRegistry``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def describe(self) -> list[Metric]:
        """Return nothing: the names are those that are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        told = self._controller.statistics()
        pushes = GaugeMetricFamily(
            "ingester_pushes", "Pushes that are kept, by status", labels=["status"]
        )
        for status in Status:
            pushes.add_metric([status.value], told.pushes.get(status.value, 0))
        yield pushes
        for name, text, value in (
            ("pushes_unreadable", "Pushes whose newest record cannot be read", told.unreadable),
            ("pushes_led", "Pushes that this controller leads", told.led),
            (
                "controller_looked_ago_seconds",
                "Seconds since the store was looked at in full",
                told.looked_ago_s,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"ingester_{name}", text, value=value)
        for name, text, count in (
            ("controller_taken_over", "Pushes that were taken over", told.taken_over),
            ("controller_deposed", "Pushes that another controller took over", told.deposed),
            ("controller_failed_looks", "Looks at the store that failed", told.failed_looks),
            ("controller_pruned", "Pushes that were deleted", told.pruned),
        ):
            yield CounterMetricFamily(f"ingester_{name}", text, value=count)
