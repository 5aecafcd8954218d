"""The status publisher: collects the daemon's facts, and publishes everything that is made of them.

    each second         facts ─▶ alarms, logged when they are raised or cleared
    each five seconds   facts ─▶ history
    on demand           facts ─▶ /api/status and its lists, /metrics, /health, systemd's status line

It starts before the daemon has an epoch, because a start that waits has a status too. It reads what
the parts report and changes nothing. Loop only, except where noted; checks of the store and of the
disks, which may block, run in threads (``store_probe``, ``disks``).
"""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import structlog
import trio
from prometheus_client import CollectorRegistry

from ingester import __version__
from ingester.config.settings import Settings
from ingester.daemon.assembly import Runtime
from ingester.daemon.disks import Disks
from ingester.daemon.loop_watch import TURN_S, LoopWatch
from ingester.daemon.service_manager import Phase
from ingester.daemon.status_items import (
    LISTS,
    busiest,
    followers_of,
    namespaces_of,
    seen,
    shown_store_log,
    status_seen,
    table_status,
)
from ingester.daemon.store_probe import StoreProbe
from ingester.errors import kind_of
from ingester.memory.ledger import MemoryStatistics
from ingester.memory.machine import resident_bytes
from ingester.observability.alarms import STALL_S, Alarms
from ingester.observability.facts import Facts, OverdueRow
from ingester.observability.gauges import GaugeCollector, Scrape
from ingester.observability.history import STEP_S, HistoryRing, TotalGrowth, quantile
from ingester.observability.log_levels import LogLevels
from ingester.observability.logs import RecentProblems
from ingester.observability.metrics import Metrics
from ingester.observability.status import (
    Admission,
    Alarm,
    Buffered,
    CheckpointStatus,
    DaemonStatus,
    DiskStatus,
    DrainStatus,
    History,
    Identity,
    LogStatus,
    Memory,
    Reason,
    SecurityStatus,
    StoreLogStatus,
    StoreState,
)
from ingester.observability.status_lists import TOP, PageRequest, StatusPage, page_of, top_of
from ingester.observability.table_detail import TableView
from ingester.server.auth.rights import Sees
from ingester.server.http.app import Purpose
from ingester.sql.engine import SqlEngine
from persist.store import ObjectStore
from persist.store.watched import ANSWERS, Tally

log = structlog.get_logger(__name__)

GRACE_S = 60.0
"""Added to twice the age at which a table's buffers are flushed: an older row should have been in a
file."""
FAILURES_S = 60.0
"""The time in which failed flush attempts count for an alarm."""


class StatusPublisher:
    """Publishes the daemon's state from the start of the process to its end.

    It is the :class:`ingester.server.http.app.StatusSource` that HTTP shows.
    """

    def __init__(
        self,
        settings: Settings,
        problems: RecentProblems,
        levels: LogLevels,
        security: Callable[[], SecurityStatus],
    ) -> None:
        self._settings, self._problems, self._levels = settings, problems, levels
        self._security = security
        self._began_at, self._began_monotonic = time.time(), time.monotonic()
        self._loop, self._probe, self._disks = LoopWatch(), StoreProbe(), Disks(settings)
        self._alarms, self._ring = Alarms(), HistoryRing()
        self._figures = _Figures(problems)
        self._failed: deque[tuple[float, int]] = deque()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._runtime: Runtime | None = None
        self._drain: Callable[[], DrainStatus] = DrainStatus
        self._registry = CollectorRegistry()
        self._registry.register(GaugeCollector(self._scrape))
        self.metrics = Metrics(self._registry)
        """The counters, which parts of the daemon count in."""

    def watched(self, store: ObjectStore) -> ObjectStore:
        """Return the store with its requests counted; it is probed from now on."""
        return self._probe.watched(store)

    def show(self, runtime: Runtime, drain: Callable[[], DrainStatus] = DrainStatus) -> None:
        """Publish this daemon, which has an epoch, from now on. Call once."""
        self._runtime, self._drain = runtime, drain
        self._probe.expect(runtime.writer.ingester_id, runtime.writer.epoch)

    async def run(self) -> None:
        """Check, judge and record until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe.run)
            nursery.start_soon(self._disks.run)
            try:
                await self._turn()
            finally:
                self._loop.end()

    async def _turn(self) -> None:
        recorded_at = trio.current_time()
        while True:
            self._loop.turned()
            facts = self.facts()
            self._judge(facts)
            if trio.current_time() - recorded_at >= STEP_S - TURN_S / 2:
                recorded_at = trio.current_time()
                if (runtime := self._runtime) is not None:
                    self._record(runtime, facts)
            await trio.sleep(TURN_S)

    # The facts

    def facts(self) -> Facts:
        """Collect the current facts. Its cost does not depend on what the daemon holds."""
        runtime = self._runtime
        if runtime is None:
            return self._early_facts()
        persist = runtime.flush.statistics()
        return Facts(
            identity=self._identity(runtime),
            admission=_admission(runtime),
            store=self._store_state(),
            disk=self._disk_status(runtime),
            security=self._security(),
            drain=self._drain(),
            adoptions=tuple(runtime.left_logs.statistics()),
            superseded=self._probe.superseded,
            stalled_s=self._loop.late_s,
            rates=runtime.metrics.rates.spans(),
            log=msgspec.convert(runtime.wal.statistics(), LogStatus, from_attributes=True),
            log_writing_s=runtime.wal.writing_s,
            segment_bytes=self._settings.wal.segment_bytes,
            persist=persist,
            buffered_bytes=runtime.ledger.buffered + runtime.ledger.frozen,
            frozen_bytes=runtime.ledger.frozen,
            failed_persists=self._failed_lately(persist.failed_attempts),
            unencodable=len(runtime.flush.flusher.unencodable()),
            oldest_unpersisted_s=runtime.tables.tree.oldest_s(),
            overdue=self._overdue(runtime),
            store_log=runtime.store_log.status(),
            clean_up=runtime.maintenance.garbage_collector.statistics(),
            publishing=runtime.publishing.statistics(),
            compaction=runtime.compactor.statistics(),
            refresh_lag_s=runtime.tables.catalog.refresh_lag_s,
            streams=runtime.query.queries.statistics(),
            sql=runtime.sql.statistics(),
            transform=runtime.write.transforms.statistics(),
            replications=tuple(runtime.replication.reports.known()),
            pushes=tuple(runtime.push_watch.pushes()),
            push_reading=runtime.push_watch.statistics(),
        )

    def _overdue(self, runtime: Runtime) -> OverdueRow | None:
        """Return the row that has been unflushed for the longest time beyond what is allowed."""
        most_s, found = self._settings.persist.max_age, list[OverdueRow]()
        for own_s, age_s in runtime.tables.tree.oldest_by_age():
            allowed_s = 2 * min(most_s, own_s or most_s) + GRACE_S
            if age_s > allowed_s:
                found.append(OverdueRow(age_s, allowed_s))
        return max(found, key=lambda row: row.age_s - row.allowed_s, default=None)

    def _early_facts(self) -> Facts:
        memory = self._settings.memory
        empty = MemoryStatistics(0, memory.limit, memory.low, memory.high, {})
        return Facts(
            identity=self._identity(None),
            admission=Admission(
                accepts_writes=False,
                reasons=[Reason(code="stopping", message="the daemon is starting")],
                memory=_memory(empty),
            ),
            store=self._store_state(),
            disk=self._disk_status(None),
            security=self._security(),
            superseded=self._probe.superseded,
            stalled_s=self._loop.late_s,
            segment_bytes=self._settings.wal.segment_bytes,
            store_log=StoreLogStatus(
                ack=self._settings.default_ack, disk=self._settings.wal.disk == "on"
            ),
        )

    def _identity(self, runtime: Runtime | None) -> Identity:
        writer = None if runtime is None else runtime.writer
        return Identity(
            ingester_id=self._settings.id if writer is None else writer.ingester_id,
            incarnation="" if writer is None else writer.incarnation,
            epoch=0 if writer is None else writer.epoch,
            version=__version__,
            pid=os.getpid(),
            started_at=_utc(self._began_at),
            uptime_s=round(time.monotonic() - self._began_monotonic, 3),
            state="starting" if runtime is None else runtime.state,
            flight="" if runtime is None else runtime.flight_url,
            http="" if runtime is None else runtime.http_url,
            store=self._settings.store_url if runtime is None else runtime.store.url,
        )

    def _store_state(self) -> StoreState:
        found = self._probe.watch.status()
        return StoreState(
            state=found.state,
            since=None if found.since is None else _utc(found.since),
            last_ok_at=None if found.last_ok_at is None else _utc(found.last_ok_at),
            last_error=found.last_error,
            reads=found.reads,
            writes=found.writes,
        )

    def _disk_status(self, runtime: Runtime | None) -> DiskStatus:
        room = self._disks.room
        log_room, spill, store = room("log"), room("spill"), room("store")
        return DiskStatus(
            log_free_bytes=None if log_room is None else log_room.free_bytes,
            log_total_bytes=None if log_room is None else log_room.total_bytes,
            log_free_files=None if log_room is None else log_room.free_files,
            log_problem=self._disks.log_problem,
            reserved_bytes=0 if runtime is None else max(0, runtime.wal.certain_bytes),
            full=runtime is not None and runtime.write.admission.disk_full(),
            spill_free_bytes=None if spill is None else spill.free_bytes,
            store_free_bytes=None if store is None else store.free_bytes,
            store_total_bytes=None if store is None else store.total_bytes,
        )

    def _failed_lately(self, failed: int) -> int:
        """Return the failed flush attempts of the last minute; ``failed`` are all so far."""
        now = trio.current_time()
        self._failed.append((now, failed))
        while now - self._failed[0][0] > FAILURES_S:
            self._failed.popleft()
        return failed - self._failed[0][1]

    # Alarms and history

    def alarms(self) -> list[Alarm]:
        """Return the raised alarms, by the current facts."""
        self._judge(self.facts())
        return self._alarms.raised()

    def _judge(self, facts: Facts) -> None:
        begun, gone = self._alarms.judge(facts, trio.current_time(), time.time())
        for alarm in begun:
            log.warning(
                "alarm raised",
                alarm=alarm.name,
                severity=alarm.severity,
                said=alarm.message,
                runbook=alarm.runbook,
            )
        for name in gone:
            log.info("alarm fell", alarm=name)

    def history(self) -> History:
        """Return the last minutes."""
        return self._ring.history(_since_boot(), time.time())

    def _record(self, runtime: Runtime, facts: Facts) -> None:
        figures = self._figures.of(facts, runtime.metrics, self._probe.watch.tally())
        self._ring.add(_since_boot(), {**figures, "alarms": len(self._alarms.raised())})

    # Health

    def live(self) -> bool:
        """Return whether the event loop has turned within the last 30 seconds."""
        return self._loop.turns

    def readiness(self, purpose: Purpose) -> list[str]:
        """Return why the daemon cannot serve; empty if it can."""
        runtime = self._runtime
        if runtime is None or runtime.state != "ready":
            return ["starting" if runtime is None else runtime.state]
        facts = self.facts()
        if purpose == "query":
            return [] if facts.store.reads else ["store: the store is unreachable"]
        if purpose == "write":
            refused = [f"{each.code}: {each.message}" for each in facts.admission.reasons]
            if (problem := facts.disk.log_problem) is not None:
                refused.append(f"log: its disk accepts no writes ({problem})")
            if facts.log_writing_s > STALL_S:
                refused.append(f"log: its disk has not answered for {facts.log_writing_s:.0f} s")
            return refused
        return []

    def open_store(self) -> ObjectStore | str:
        """Return the daemon's store, or why it cannot be read now."""
        if (reasons := self.readiness("query")) or self._runtime is None:
            return ", ".join(reasons)
        return self._runtime.store

    def open_sql(self) -> SqlEngine | str:
        """Return the daemon's SQL engine, or why it answers no queries now."""
        runtime = self._runtime
        if runtime is None or runtime.state in ("starting", "stopping"):
            return "starting" if runtime is None else runtime.state
        return runtime.sql

    def phase(self) -> Phase:
        """Return the state and a line for systemd."""
        runtime = self._runtime
        if runtime is None:
            return Phase("starting", "starting: waiting for its log or the store")
        text = f"{runtime.state}: {runtime.tables.tree.statistics().rows} rows in buffers"
        if alarms := [alarm.name for alarm in self.alarms()]:
            text += f"; alarms: {', '.join(alarms)}"
        return Phase(runtime.state, text)

    # Metrics

    @property
    def registry(self) -> CollectorRegistry:
        """All metrics, including everything acknowledged until now."""
        if self._runtime is not None:
            self._runtime.wal.catch_up()
        return self._registry

    def answered(self, route: str, status: int) -> None:
        """Count an HTTP answer."""
        self._answers[route, status] += 1

    def _scrape(self) -> Scrape:
        runtime, facts = self._runtime, self.facts()
        self._judge(facts)
        return Scrape(
            facts=facts,
            alarms={alarm.name for alarm in self._alarms.raised()},
            requests=self._probe.watch.tally(),
            answers=self._answers,
            buffered=Buffered() if runtime is None else runtime.tables.tree.statistics(),
            namespaces=() if runtime is None else list(namespaces_of(runtime)),
            published=() if runtime is None else list(runtime.publishing.all()),
        )

    # Status

    def status(self, sees: Sees | None = None) -> DaemonStatus:
        """Return the whole status.

        Args:
            sees: whether the caller sees a namespace; None for all.
        """
        runtime = self._runtime
        if runtime is not None:
            runtime.wal.catch_up()
        facts = self.facts()
        self._judge(facts)
        status = DaemonStatus(
            identity=facts.identity,
            alarms=self._alarms.raised(),
            store_state=facts.store,
            disk=facts.disk,
            oldest_unpersisted_s=_rounded(facts.oldest_unpersisted_s),
            admission=facts.admission,
            rates=facts.rates,
            tables=[],
            persist=facts.persist,
            log=facts.log,
            store_log=shown_store_log(facts.store_log, sees),
            origins=[],
            streams=facts.streams,
            sql=facts.sql,
            clean_up=facts.clean_up,
            publishing=facts.publishing,
            compaction=facts.compaction,
            transform=facts.transform,
            pushes=list(facts.pushes),
            push_reading=facts.push_reading,
            drain=facts.drain,
            adoptions=list(facts.adoptions),
            security=facts.security,
            log_levels=self._levels.status(),
            errors=self._problems.newest_first(),
        )
        if runtime is not None:
            status = _with_lists(status, runtime, facts, sees)
        return status_seen(status, sees)

    def page(self, asked: PageRequest, sees: Sees | None = None) -> StatusPage:
        """Return a page of one of the status's lists; an empty one before there is an epoch.

        Args:
            sees: whether the caller sees a namespace; None for all.

        Raises:
            BadRequest: there is no such list, or the limits are invalid.
        """
        asked.check(LISTS)
        if self._runtime is None:
            return StatusPage(list=asked.list, total=0, items=())
        self._runtime.wal.catch_up()
        keyed, item = LISTS[asked.list]
        return page_of(asked, keyed(self._runtime, sees), partial(item, self._runtime))

    def table(self, namespace: str, table: str) -> TableView | None:
        """Return the current state of an open table, or None."""
        if self._runtime is None:
            return None
        self._runtime.wal.catch_up()
        found = self._runtime.tables.tree.tables.get((namespace, table))
        if found is None:
            return None
        return replace(
            found.view(),
            published=self._runtime.publishing.of_table(found.key),
            ack=self._runtime.write.writes.levels.level(found.key, found.definition.ack),
        )


class _Figures:
    """Makes the figures of the history; its rates are since the previous moment."""

    def __init__(self, problems: RecentProblems) -> None:
        self._problems = problems
        self._growth = TotalGrowth()
        self._problem_count = problems.count
        self._ack_counts: list[int] | None = None

    def of(self, facts: Facts, metrics: Metrics, tally: Tally) -> dict[str, float | None]:
        """Return the current figures by the names of ``history.FIGURES``."""
        rates, requests = metrics.rates.over(round(STEP_S)), tally.requests
        failures = sum(n for (_, outcome), n in requests.items() if outcome not in ANSWERS)
        totals = {
            "refusals_per_s": float(metrics.refusals),
            "persisted_bytes_per_s": float(facts.persist.persisted.bytes),
            "store_requests_per_s": float(sum(requests.values())),
            "store_failures_per_s": float(failures),
        }
        problems, self._problem_count = self._problem_count, self._problems.count
        return {
            **msgspec.structs.asdict(rates),
            **self._latencies(metrics),
            **self._growth.rates(trio.current_time(), totals),
            "buffered_bytes": facts.buffered_bytes,
            "memory_bytes": facts.admission.memory.used_bytes,
            "resident_bytes": resident_bytes() or None,
            "queued_bytes": facts.persist.queued_bytes,
            "log_bytes": facts.log.bytes,
            "log_free_bytes": facts.disk.log_free_bytes,
            "oldest_unpersisted_s": facts.oldest_unpersisted_s,
            "streams": facts.streams.open,
            "errors": self._problem_count - problems,
        }

    def _latencies(self, metrics: Metrics) -> dict[str, float | None]:
        timings = metrics.ack_timings
        before, after = self._ack_counts, timings.counts()
        self._ack_counts = after
        if before is None:
            return {}
        return {
            "write_p50_s": quantile(0.5, timings.bounds, before, after),
            "write_p99_s": quantile(0.99, timings.bounds, before, after),
        }


def _with_lists(
    status: DaemonStatus, runtime: Runtime, facts: Facts, sees: Sees | None
) -> DaemonStatus:
    """Add the first entries of each list that the caller sees."""
    parts, checkpoints = runtime.tables, runtime.tables.tree.checkpoints.statistics()
    origins = parts.known_origins.statistics(sees)
    tables = seen(parts.tree.tables.values(), sees)
    followers = seen(followers_of(runtime), sees)
    replications = seen(facts.replications, sees)
    namespaces = seen(namespaces_of(runtime), sees)
    return msgspec.structs.replace(
        status,
        counts={
            "tables": len(tables),
            "origins": len(origins),
            "followers": len(followers),
            "replications": len(replications),
            "namespaces": len(namespaces),
        },
        tables=[table_status(runtime, table) for table in busiest(tables)],
        origins=heapq.nsmallest(TOP, origins, key=lambda each: not each.open),
        checkpoints=msgspec.convert(checkpoints, CheckpointStatus, from_attributes=True),
        followers=heapq.nsmallest(TOP, followers, key=lambda each: not each.alive),
        replications=top_of(replications),
        namespaces=heapq.nlargest(TOP, namespaces, key=lambda each: (each.bytes, each.tables)),
    )


def _admission(runtime: Runtime) -> Admission:
    reasons = [
        Reason(code=kind_of(error).code, message=error.message, retry_after_s=error.retry_after_s)
        for error in runtime.write.admission.refusals()
    ]
    return Admission(
        accepts_writes=not reasons and runtime.state == "ready",
        reasons=reasons,
        memory=_memory(runtime.ledger.statistics()),
    )


def _memory(ledger: MemoryStatistics) -> Memory:
    return Memory(**ledger._asdict())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _since_boot() -> float:
    """Return monotonic seconds that include the time for which the machine was asleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
