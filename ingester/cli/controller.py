"""``controller``: runs the push controller until a signal, and exports its metrics.

Labels are bounded: statuses, configured classes and the methods of a hook.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ingester.observability.logs import configure_logs
from ingester.pushes.configured import ConfiguredPushes
from ingester.pushes.controller import (
    LOOK_EVERY,
    Controller,
    ControllerSettings,
    log_hook_failure,
)
from ingester.pushes.hook_calls import QUEUED_UP_TO_S
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.leading import Leadership
from ingester.pushes.states import Status
from ingester.pushes.tasks import RegionUnreachable
from persist.store import StoreUnavailable, check_store

from .exits import stopped_by_signals
from .metrics_server import MetricsAddress, MetricsServer
from .pushes import told

log = structlog.get_logger()

_LOOK_S = 0.2
"""How often a signal is looked for while hooks are loaded."""
LATE_S = 60.0
"""A controller that has not reached its store for this long is not ready."""


def run_controller(config: Path, metrics: MetricsAddress | None, once: bool) -> None:
    """Lead pushes until SIGINT or SIGTERM; with ``once`` until none without a leader is left.

    Raises:
        CommandFailed: the configuration is invalid, or the store is unsuitable.
    """
    configure_logs()
    stop = stopped_by_signals()
    with told():
        place = ConfiguredPushes.read(config)
        loaded = _loaded(place, stop)
    if loaded is None:
        log.info("controller stopped", why="a signal came while hooks were loaded")
        return
    how, hooks = loaded
    retain = timedelta(seconds=place.config.pushes.retain)
    controller = Controller(how, ControllerSettings(retain=retain, forget=place.forget))
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(HookMetrics(hooks))
    registry.register(PushMetrics(controller))
    with ExitStack() as stack:
        url = None
        if metrics is not None:
            server = MetricsServer(metrics, registry, lambda: _unready(controller))
            stack.callback(server.close)
            url = f"{server.url}/metrics"
        log.info(
            "controller started",
            controller=how.controller,
            pushes_in=place.store.url,
            regions=list(place.config.names),
            hooks=list(place.config.hooks.classes),
            metrics=url,
        )
        for each in hooks.not_enabled():
            key = each.make.enabled_by
            log.info("hook not enabled", hook=each.name, by=key)
        with told():
            if once:
                place.check_reachable()
                check_store(place.store)
                controller.run_once(stop)
            elif _checked(place, stop):
                controller.run(stop)
        log.info("controller stopped", controller=how.controller)


def _loaded(place: ConfiguredPushes, stop: threading.Event) -> tuple[Leadership, HookRunner] | None:
    """Load the hooks, in another thread as that may take long; None if stopped before."""
    loading = ThreadPoolExecutor(1).submit(place.leadership, log_hook_failure)
    while not stop.is_set():
        if wait([loading], timeout=_LOOK_S).done:
            return loading.result()
    return None


def _checked(place: ConfiguredPushes, stop: threading.Event) -> bool:
    """Wait for the store, check it, and return True; False if stopped before.

    Raises:
        StoreError: it is unsuitable, or refuses access.
    """
    while not stop.is_set():
        try:
            place.check_reachable()
            check_store(place.store)
        except (StoreUnavailable, RegionUnreachable) as exc:
            log.warning("pushes not seen", error=str(exc), runbook="store-away")
            stop.wait(LOOK_EVERY.total_seconds())
        else:
            return True
    return False


def _unready(controller: Controller) -> str:
    ago = controller.statistics().looked_ago_s
    if ago is None:
        return "the store was not reached yet\n"
    return f"the store was not reached for {ago:.0f} s\n" if ago > LATE_S else ""


# ------------------------------------------------------------------------------------------ metrics


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
        waited = HistogramMetricFamily(
            "ingester_hook_queue_time_seconds",
            "Distribution of the time hook calls waited",
            labels=_LABELS,
        )
        for times in self._runner.queue_times():
            limits = zip(
                [*map(str, QUEUED_UP_TO_S), "+Inf"], [*times.up_to, times.calls], strict=True
            )
            waited.add_metric((times.hook, times.method), list(limits), times.queued_s)
        yield from (calls, queued, running, waited)


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
