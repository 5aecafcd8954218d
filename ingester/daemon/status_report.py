"""The daemon's report of itself: ``/api/status``, readiness, gauges.

Law of this file: it puts together what each part tells about itself. It reads and never changes;
everything that it needs is on the loop.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry

from ingester import __version__
from ingester.config.settings import Settings
from ingester.daemon.assembly import Runtime
from ingester.daemon.service_manager import Phase
from ingester.daemon.status_items import (
    LISTS,
    busiest,
    followers_of,
    namespaces_of,
    tell_checkpoints,
    tell_table,
)
from ingester.daemon.watch import Watch
from ingester.errors import kind_of
from ingester.memory.ledger import MemoryStatistics
from ingester.observability.alarms import STALL_S
from ingester.observability.gauges import GaugeCollector, Gauges
from ingester.observability.logs import Problem
from ingester.observability.standing import Alarm, History
from ingester.observability.standing_metrics import standing_metrics
from ingester.observability.status import (
    Admission,
    DrainStatus,
    Identity,
    LogStatus,
    Memory,
    PersistStatus,
    RateSpans,
    Reason,
    SecurityStatus,
    Status,
    StreamStatus,
)
from ingester.observability.status_lists import TOP, PageRequest, StatusPage, page_of, top_of
from ingester.observability.table_detail import TableView
from ingester.server.auth.views import Sees, seen, status_seen
from ingester.server.http.app import Purpose


class StatusReport:
    """Tells of the start, then of a running daemon.

    It is the :class:`ingester.server.http.app.StatusSource` that HTTP shows.
    """

    def __init__(
        self,
        settings: Settings,
        problems: Callable[[], list[Problem]],
        security: Callable[[], SecurityStatus],
        watch: Watch,
    ) -> None:
        self._watch = watch
        self._security = security
        self._settings = settings
        self._problems = problems
        self._began_at, self._began_monotonic = time.time(), time.monotonic()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._standing = GaugeCollector(lambda: watch.standing(self._answers), standing_metrics)
        self._early_metrics = CollectorRegistry()
        self._early_metrics.register(self._standing)
        self._runtime: Runtime | None = None
        self._drain: Callable[[], DrainStatus] = DrainStatus

    def show(self, runtime: Runtime, drain: Callable[[], DrainStatus] = DrainStatus) -> None:
        """Tell of this daemon from now on: it has an epoch. Call once, on the loop."""
        self._runtime = runtime
        self._drain = drain
        self._watch.begin(runtime)
        runtime.registry.register(self._standing)
        runtime.metrics.watch(lambda: _gauges(runtime, self._security(), drain()))

    @property
    def registry(self) -> CollectorRegistry:
        """The daemon's metrics, with everything that is acknowledged now. On the loop."""
        if self._runtime is None:
            return self._early_metrics
        self._runtime.wal.catch_up()
        return self._runtime.registry

    def live(self) -> bool:
        """Say whether the loop turns; that of a daemon that waits for its store does.

        A loop that has not turned answers nothing; that it had not, it says when it turns again.
        """
        return self._watch.turns

    def readiness(self, purpose: Purpose) -> list[str]:
        """Name what keeps the daemon from serving; empty when nothing does."""
        runtime = self._runtime
        if runtime is None or runtime.state != "ready":
            return ["starting" if runtime is None else runtime.state]
        if purpose == "query":
            store = self._watch.store_state()
            return [] if store.reads else ["store: the store does not answer"]
        if purpose == "write":
            refused = [f"{reason.code}: {reason.message}" for reason in _refusals(runtime)]
            if (problem := self._watch.disk().log_problem) is not None:
                refused.append(f"log: its disk takes no writes ({problem})")
            if (waits_s := runtime.wal.writing_s) > STALL_S:
                refused.append(f"log: its disk has not answered for {waits_s:.0f} s")
            return refused
        return []

    def phase(self) -> Phase:
        """Tell what the daemon is about, in a line."""
        runtime = self._runtime
        if runtime is None:
            return Phase("starting", "starting: waits for its log or the store")
        said = f"{runtime.state}: {runtime.tree.statistics().rows} rows in buffers"
        if alarms := [alarm.name for alarm in self._watch.alarms()]:
            said += f"; alarms: {', '.join(alarms)}"
        return Phase(runtime.state, said)

    def alarms(self) -> list[Alarm]:
        """Tell what somebody has to see to now."""
        return self._watch.alarms()

    def answered(self, route: str, status: int) -> None:
        """Count an answer of HTTP."""
        self._answers[route, status] += 1

    def history(self) -> History:
        """Tell of the last minutes."""
        return self._watch.history()

    def status(self, sees: Sees | None = None) -> Status:
        """Tell everything, at this moment; before there is an epoch, the problems so far.

        Args:
            sees: says which namespaces the caller sees; None is all.
        """
        runtime = self._runtime
        if runtime is None:
            return status_seen(self._starting(), sees)
        runtime.wal.catch_up()
        everything = self._status(runtime, sees)
        return status_seen(everything, sees)

    def _status(self, runtime: Runtime, sees: Sees | None) -> Status:
        origins = runtime.known_origins.statistics(sees)
        tables = seen(runtime.tree.tables.values(), sees)
        followers = seen(followers_of(runtime), sees)
        replications = seen(runtime.reports.known(), sees)
        namespaces = seen(namespaces_of(runtime), sees)
        return Status(
            identity=_identity(runtime),
            alarms=self._watch.alarms(),
            store_state=self._watch.store_state(),
            disk=self._watch.disk(),
            oldest_unpersisted_s=_rounded(runtime.tree.oldest_s()),
            admission=_admission(runtime),
            rates=runtime.rates.spans(),
            counts={
                "tables": len(tables),
                "origins": len(origins),
                "followers": len(followers),
                "replications": len(replications),
                "namespaces": len(namespaces),
            },
            tables=[tell_table(runtime, table) for table in busiest(tables)],
            persist=_persists(runtime),
            log=_log(runtime),
            origins=heapq.nsmallest(TOP, origins, key=lambda each: not each.open),
            checkpoints=tell_checkpoints(runtime.tree.checkpoints.statistics()),
            streams=runtime.queries.statistics(),
            followers=heapq.nsmallest(TOP, followers, key=lambda each: not each.alive),
            replications=top_of(replications),
            clean_up=runtime.garbage_collector.statistics(),
            transform=runtime.transforms.statistics(),
            pushes=runtime.push_watch.pushes(),
            push_reading=runtime.push_watch.statistics(),
            drain=self._drain(),
            adoptions=runtime.left_logs.statistics(),
            security=self._security(),
            namespaces=heapq.nlargest(TOP, namespaces, key=lambda each: (each.bytes, each.tables)),
            log_levels=runtime.log_levels.status(),
            errors=self._problems(),
        )

    def page(self, asked: PageRequest, sees: Sees | None = None) -> StatusPage:
        """Tell a page of one of the status's lists; an empty one before there is an epoch.

        Args:
            sees: says which namespaces the caller sees; None is all.

        Raises:
            InvalidRequest: there is no such list, or its bounds are not taken.
        """
        asked.check(LISTS)
        if self._runtime is None:
            return StatusPage(list=asked.list, total=0, items=())
        self._runtime.wal.catch_up()
        keyed, tell = LISTS[asked.list]
        return page_of(asked, keyed(self._runtime, sees), partial(tell, self._runtime))

    def table(self, namespace: str, table: str) -> TableView | None:
        """Give a table that is open here as it is now; None where it is not."""
        if self._runtime is None:
            return None
        self._runtime.wal.catch_up()
        found = self._runtime.tree.tables.get((namespace, table))
        return None if found is None else found.view()

    def _starting(self) -> Status:
        memory = self._settings.memory
        return Status(
            identity=Identity(
                ingester_id=self._settings.id,
                incarnation="",
                epoch=0,
                version=__version__,
                pid=os.getpid(),
                started_at=_utc(self._began_at),
                uptime_s=round(time.monotonic() - self._began_monotonic, 3),
                state="starting",
                flight="",
                http="",
                store=self._settings.store_url,
            ),
            alarms=self._watch.alarms(),
            store_state=self._watch.store_state(),
            disk=self._watch.disk(),
            admission=Admission(
                accepts_writes=False,
                reasons=[Reason(code="stopping", message="the daemon is starting")],
                memory=_memory(MemoryStatistics(0, memory.limit, memory.low, memory.high, {})),
            ),
            rates=RateSpans(),
            tables=[],
            persist=PersistStatus(),
            log=LogStatus(),
            origins=[],
            streams=StreamStatus(),
            security=self._security(),
            errors=self._problems(),
        )


def _gauges(runtime: Runtime, security: SecurityStatus, drain: DrainStatus) -> Gauges:
    admission = _admission(runtime)
    return Gauges(
        security=security,
        draining=drain.state != "none",
        drained=drain.state == "drained",
        memory=admission.memory,
        buffered=runtime.tree.statistics(),
        persist=_persists(runtime),
        log=_log(runtime),
        streams=runtime.queries.statistics(),
        ready=runtime.state == "ready",
        accepts_writes=admission.accepts_writes,
        replications=list(runtime.reports.known()),
        namespaces=list(namespaces_of(runtime)),
    )


def _identity(runtime: Runtime) -> Identity:
    return Identity(
        ingester_id=runtime.writer.ingester_id,
        incarnation=runtime.writer.incarnation,
        epoch=runtime.writer.epoch,
        version=__version__,
        pid=os.getpid(),
        started_at=_utc(runtime.started_at),
        uptime_s=round(time.monotonic() - runtime.started_monotonic, 3),
        state=runtime.state,
        flight=runtime.flight_url,
        http=runtime.http_url,
        store=runtime.store.url,
    )


def _admission(runtime: Runtime) -> Admission:
    reasons = _refusals(runtime)
    return Admission(
        accepts_writes=not reasons and runtime.state == "ready",
        reasons=reasons,
        memory=_memory(runtime.ledger.statistics()),
    )


def _refusals(runtime: Runtime) -> list[Reason]:
    return [
        Reason(code=kind_of(error).code, message=error.message, retry_after_s=error.retry_after_s)
        for error in runtime.admission.refusals()
    ]


def _memory(ledger: MemoryStatistics) -> Memory:
    return Memory(**ledger._asdict())


def _persists(runtime: Runtime) -> PersistStatus:
    return runtime.instrumentation.persists(runtime.flusher.statistics())


def _log(runtime: Runtime) -> LogStatus:
    return msgspec.convert(runtime.wal.statistics(), LogStatus, from_attributes=True)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
