"""``controller``: leads the pushes that nobody leads, until a signal.

Law of this file: the main thread looks after the pushes, and each push has a thread. A signal lets
all of them end; what they led is left to other controllers, or to this one when it runs again.
"""

import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from ingester.observability.logs import configure_logs
from ingester.pushes.controller import LOOK_EVERY, Controller, Keeping
from ingester.pushes.hook_metrics import HookMetrics
from ingester.pushes.push_log import log_hook_failure
from ingester.pushes.push_metrics import PushMetrics
from ingester.pushes.regions import RegionUnreachable
from persist.store import StoreUnavailable, check_store

from .exits import stopped_by_signals
from .metrics_server import MetricsAddress, MetricsServer
from .push_place import PushPlace, forget, leadership, push_place, told

log = structlog.get_logger()

LATE_S = 60.0
"""A controller that has not seen its store for so long is not ready."""


def run_controller(config: Path, metrics: MetricsAddress | None, once: bool) -> None:
    """Lead pushes until SIGINT or SIGTERM, or with ``once`` until what nobody led is over.

    Raises:
        CommandFailed: the configuration cannot be, or the store cannot keep pushes.
    """
    configure_logs()
    stop = stopped_by_signals()
    place = push_place(config)
    how, hooks = leadership(place, log_hook_failure)
    retain = timedelta(seconds=place.config.pushes.retain)
    controller = Controller(how, Keeping(retain=retain, forget=lambda push: forget(place, push)))
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
                place.check_there()
                check_store(place.store)
                controller.run_once(stop)
            elif _checked(place, stop):
                controller.run(stop)
        log.info("controller stopped", controller=how.controller)


def _checked(place: PushPlace, stop: threading.Event) -> bool:
    """Return True once the store is known to keep pushes safe; a store that is away is waited for.

    Raises:
        StoreError: it does not, or may not be asked.
    """
    while not stop.is_set():
        try:
            place.check_there()
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
        return "the store was not seen yet\n"
    return f"the store was not seen for {ago:.0f} s\n" if ago > LATE_S else ""
