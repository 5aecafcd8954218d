"""The metrics of a push controller: of its pushes, and of its hooks.

Collectors only read what a ``Controller`` and a ``HookRunner`` have counted. Labels are bounded:
statuses, configured classes and the methods of a hook.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.pushes.controller import Controller
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.states import Status

_LABELS = ("class", "method")


class HookMetrics(Collector):
    """Collects the counts of a hook runner."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        """Yield the counters."""
        calls = CounterMetricFamily(
            "ingester_hook_calls",
            "Hook calls by outcome: a decision, failed or timed_out",
            labels=(*_LABELS, "outcome"),
        )
        queued = CounterMetricFamily(
            "ingester_hook_queued_seconds",
            "Time hook calls waited",
            labels=_LABELS,
        )
        running = CounterMetricFamily(
            "ingester_hook_running_seconds", "Time hook calls ran", labels=_LABELS
        )
        for each in self._runner.statistics():
            labels = (each.hook, each.method)
            for outcome, count in sorted(each.outcomes.items()):
                calls.add_metric((*labels, outcome), count)
            queued.add_metric(labels, each.queued_s)
            running.add_metric(labels, each.running_s)
        yield from (calls, queued, running)


class PushMetrics(Collector):
    """Collects the counts of a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def describe(self) -> list[Metric]:
        """Return nothing: names are known only after a collection."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        told = self._controller.statistics()
        pushes = GaugeMetricFamily("ingester_pushes", "Stored pushes by status", labels=["status"])
        for status in Status:
            pushes.add_metric([status.value], told.pushes.get(status.value, 0))
        yield pushes
        for name, text, value in (
            ("pushes_unreadable", "Pushes whose newest record cannot be read", told.unreadable),
            ("pushes_led", "Pushes led by this controller", told.led),
            (
                "controller_looked_ago_seconds",
                "Seconds since the controller last read all pushes from the store",
                told.looked_ago_s,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"ingester_{name}", text, value=value)
        for name, text, count in (
            ("controller_taken_over", "Pushes taken over", told.taken_over),
            ("controller_deposed", "Pushes that another controller took over", told.deposed),
            (
                "controller_failed_looks",
                "Failed attempts to read the pushes from the store",
                told.failed_looks,
            ),
            ("controller_pruned", "Deleted pushes", told.pruned),
        ):
            yield CounterMetricFamily(f"ingester_{name}", text, value=count)
