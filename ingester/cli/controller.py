"""``controller``: runs the push controller until a signal."""

import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from ingester.observability.logs import configure_logs
from ingester.pushes.configured import ConfiguredPushes
from ingester.pushes.controller import (
    LOOK_EVERY,
    Controller,
    ControllerSettings,
    log_hook_failure,
)
from ingester.pushes.metrics import HookMetrics, PushMetrics
from ingester.pushes.tasks import RegionUnreachable
from persist.store import StoreUnavailable, check_store

from .exits import stopped_by_signals
from .metrics_server import MetricsAddress, MetricsServer
from .pushes import told

log = structlog.get_logger()

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
        how, hooks = place.leadership(log_hook_failure)
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
        with told():
            if once:
                place.check_reachable()
                check_store(place.store)
                controller.run_once(stop)
            elif _checked(place, stop):
                controller.run(stop)
        log.info("controller stopped", controller=how.controller)


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
