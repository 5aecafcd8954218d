"""What hooks were asked and have said, as metrics: for the registry of whoever leads pushes.

Law of this file: nothing is counted here; a scrape reads what a :class:`HookRunner` has counted.
Labels are the configured classes and the methods of a hook.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.pushes.runner import HookRunner

_LABELS = ("class", "method")


class HookMetrics(Collector):
    """Collects the counts of a runner; register it with a ``CollectorRegistry``."""

    def __init__(self, runner: HookRunner) -> None:
        self._runner = runner

    def collect(self) -> Iterator[Metric]:
        """Yield the counters, one scrape's worth."""
        calls = CounterMetricFamily(
            "ingester_hook_calls",
            "Calls of hooks, by how they ended: a decision, failed, timed_out",
            labels=(*_LABELS, "outcome"),
        )
        queued = CounterMetricFamily(
            "ingester_hook_queued_seconds", "Time that calls waited to run", labels=_LABELS
        )
        running = CounterMetricFamily(
            "ingester_hook_running_seconds", "Time that calls ran", labels=_LABELS
        )
        for each in self._runner.statistics():
            labels = (each.hook, each.method)
            for outcome, count in sorted(each.outcomes.items()):
                calls.add_metric((*labels, outcome), count)
            queued.add_metric(labels, each.queued_s)
            running.add_metric(labels, each.running_s)
        yield from (calls, queued, running)
