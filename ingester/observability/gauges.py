"""The metrics that are read at a scrape: the daemon's state, from one :class:`Scrape`.

    GaugeCollector ─▶ Scrape, made on the loop ─▶ ``scrape_families`` ─▶ Prometheus

All gauges of a scrape come from the same facts (``facts``), so they agree with each other and with
the status. Labels are bounded: alarms, disks, store operations, HTTP routes; ``MAX_NAMESPACES``
namespaces, ``MAX_TABLE_PHASES`` replicated and ``MAX_PUBLISHED`` published tables. The metrics
exist from the start of the process, also while the daemon waits for its store.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from operator import attrgetter

import trio
from msgspec.structs import asdict
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ingester.observability.alarms import ALARMS
from ingester.observability.facts import Facts
from ingester.observability.status import (
    Buffered,
    CertificateStatus,
    DiskStatus,
    NamespaceStatus,
    PublishedFormat,
    ReplicationStatus,
    SqlStatus,
    StoreLogStatus,
)
from ingester.reports.replications import PHASES
from persist.store.watched import BOUNDS_S, OPERATIONS, Tally
from persist.table import TableKey

MAX_NAMESPACES = 100
"""The namespaces whose use and refusals have their own labels."""
OTHER_NAMESPACES = "_other"
"""The label of the other namespaces; no namespace has this name."""
MAX_PUBLISHED = 1_000
"""The published tables, in each format, with series of their own."""
MAX_TABLE_PHASES = 1_000
"""The replicated tables with a series of their own; those that do not follow come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Everything that one scrape reads."""

    facts: Facts
    alarms: Collection[str]
    """The names of the raised alarms."""
    requests: Tally
    """The store's requests."""
    answers: Mapping[tuple[str, int], int]
    """HTTP answers by route and status."""
    buffered: Buffered = Buffered()  # noqa: RUF009
    namespaces: Sequence[NamespaceStatus] = ()
    published: Sequence[tuple[TableKey, PublishedFormat]] = ()

    @property
    def ready(self) -> bool:
        """Whether calls of any kind are accepted."""
        return self.facts.identity.state == "ready"

    @property
    def draining(self) -> bool:
        """Whether the daemon is draining or drained."""
        return self.facts.drain.state != "none"

    @property
    def drained(self) -> bool:
        """Whether the daemon is drained."""
        return self.facts.drain.state == "drained"


_GAUGES = {
    "memory_limit_bytes": (
        "facts.admission.memory.limit_bytes",
        "Value of the setting memory.limit",
    ),
    "memory_low_bytes": (
        "facts.admission.memory.low_bytes",
        "Watermark above which the daemon flushes early",
    ),
    "memory_high_bytes": (
        "facts.admission.memory.high_bytes",
        "Watermark above which the daemon refuses writes",
    ),
    "buffered_rows": ("buffered.rows", "Unflushed rows"),
    "buffered_bytes": ("buffered.bytes", "Memory of unflushed rows"),
    "buffered_partitions": ("buffered.partitions", "Partitions with a buffer"),
    "persist_queued_jobs": ("facts.persist.queued_jobs", "Frozen buffers waiting for a worker"),
    "persist_queued_bytes": (
        "facts.persist.queued_bytes",
        "Memory of the frozen buffers waiting for a worker",
    ),
    "persist_active_jobs": ("facts.persist.active", "Running flushes"),
    "log_segments": ("facts.log.segments", "Log segments on local disk"),
    "log_bytes": ("facts.log.bytes", "Bytes of the log segments on local disk"),
    "log_pending_operations": ("facts.log.pending", "Operations waiting for their sync"),
    "store_log_objects": ("facts.store_log.objects", "Log objects of this id in the store"),
    "store_log_bytes": ("facts.store_log.bytes", "Bytes of the log objects in the store"),
    "store_log_waiting_bytes": (
        "facts.store_log.waiting_bytes",
        "Bytes of operations that wait for their log object",
    ),
    "streams_open": ("facts.streams.open", "Open query streams"),
    "followers_waiting": ("facts.streams.waiting", "Follower calls waiting for new rows"),
    "streams_stalled": (
        "facts.streams.stalled",
        "Open query streams whose client has stopped reading",
    ),
    "answer_files": (
        "facts.streams.files",
        "Local files with rows of keyed answers that are still to be sent",
    ),
    "answer_file_bytes": (
        "facts.streams.file_bytes",
        "Bytes of local files with rows of keyed answers, at most",
    ),
    "sql_running": ("facts.sql.running", "Running SQL queries"),
    "sql_waiting": ("facts.sql.waiting", "SQL queries that wait for a worker"),
    "sql_workers": ("facts.sql.workers", "Processes that run SQL queries"),
    "sql_spilled_bytes": (
        "facts.sql.spilled_bytes",
        "Disk space that running SQL queries use",
    ),
    "insecure": (
        "facts.security.insecure",
        "1 while other machines reach a listener without TLS or tokens",
    ),
    "auth_valid_tokens": ("facts.security.callers.valid", "Valid tokens of auth.tokens"),
    "auth_problems": (
        "facts.security.callers.problems",
        "Token files and key sets that cannot be read",
    ),
    "auth_failed_readings": (
        "facts.security.callers.failed_readings",
        "How often tokens or keys could not be read since the start",
    ),
    "audit_lines": ("facts.security.callers.audited", "Lines of the audit log since the start"),
    "audit_left_out": (
        "facts.security.callers.audit_left_out",
        "Refusals beyond the audit log's limit, and lines that could not be written",
    ),
    "ready": ("ready", "1 while calls are accepted: not while starting, drained or stopping"),
    "accepts_writes": (
        "facts.admission.accepts_writes",
        "1 while a write to an open table is accepted",
    ),
    "draining": ("draining", "1 from `ingester drain` on, also once it is drained"),
    "drained": ("drained", "1 while everything is in files and the daemon may be stopped"),
    "refresh_lag_seconds": (
        "facts.refresh_lag_s",
        "Seconds for which a requested table could not be looked up in the store",
    ),
}
"""The path of each gauge in :class:`Scrape`, and its help text."""
_READ = {name: attrgetter(path) for name, (path, _) in _GAUGES.items()}


class GaugeCollector(Collector):
    """Takes one :class:`Scrape` per scrape, on the loop that was running when it was made."""

    def __init__(self, ask: Callable[[], Scrape]) -> None:
        """``ask`` is called on the loop, whatever thread scrapes; it must not block."""
        self._ask = ask
        in_loop = trio.lowlevel.in_trio_run()
        self._loop = trio.lowlevel.current_trio_token() if in_loop else None

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values: registration must not ask for them."""
        return scrape_families(None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values."""
        if self._loop is None or trio.lowlevel.in_trio_run():
            return scrape_families(self._ask())
        return scrape_families(trio.from_thread.run_sync(self._ask, trio_token=self._loop))


def scrape_families(scrape: Scrape | None) -> Iterator[Metric]:
    """Yield all metrics of a scrape; without values for None."""
    for name, (_, text) in _GAUGES.items():
        value = None if scrape is None else _number(_READ[name](scrape))
        yield GaugeMetricFamily(f"ingester_{name}", text, value=value)
    facts = None if scrape is None else scrape.facts
    yield from _state(facts)
    yield _alarms(scrape)
    memory = GaugeMetricFamily(
        "ingester_memory_used_bytes", "Bytes that count against memory.limit", labels=["kind"]
    )
    for kind, used in () if facts is None else facts.admission.memory.by_kind.items():
        memory.add_metric([kind], used)
    yield memory
    yield _disks(None if facts is None else facts.disk)
    yield from _requests(None if scrape is None else scrape.requests)
    answers = CounterMetricFamily(
        "ingester_http_requests", "Answered HTTP requests", labels=["route", "status"]
    )
    for (route, status), count in () if scrape is None else sorted(scrape.answers.items()):
        answers.add_metric([route, str(status)], count)
    yield answers
    yield from _sql(None if facts is None else facts.sql)
    yield from _store_log(None if facts is None else facts.store_log)
    yield from _certificate(None if facts is None else facts.security.certificate)
    yield from replication_metrics(() if facts is None else facts.replications)
    yield from namespace_metrics(() if scrape is None else scrape.namespaces)
    yield from _published(() if scrape is None else scrape.published)


def _published(found: Sequence[tuple[TableKey, PublishedFormat]]) -> Iterator[Metric]:
    """Yield how far published tables are behind; of very many, those that are furthest behind."""
    labels = ("namespace", "table", "format")
    versions = GaugeMetricFamily(
        "ingester_publish_versions_behind",
        "Versions of a table that are not published in an open format yet",
        labels=labels,
    )
    seconds = GaugeMetricFamily(
        "ingester_publish_seconds_behind",
        "Age of the oldest version of a table that waits to be published in an open format",
        labels=labels,
    )
    for key, each in heapq.nlargest(MAX_PUBLISHED, found, key=lambda one: one[1].seconds_behind):
        if each.versions_behind is not None:
            versions.add_metric((*key, each.format), each.versions_behind)
        seconds.add_metric((*key, each.format), each.seconds_behind)
    yield versions
    yield seconds


def _number(found: float | list[str]) -> float:
    return float(len(found) if isinstance(found, list) else found)


def _state(facts: Facts | None) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "ingester_build_info", "1; the version is a label", labels=["version"]
    )
    oldest = up = fenced = created = None
    if facts is not None:
        build.add_metric([facts.identity.version], 1.0)
        up = float(facts.store.state == "ok")
        fenced = float(facts.identity.state == "fenced")
        created = facts.log.created_segments
        # Unknown before the log is replayed.
        oldest = None if facts.starting else facts.oldest_unpersisted_s or 0.0
    yield build
    yield GaugeMetricFamily("ingester_store_up", "1 while the store is reachable", value=up)
    yield GaugeMetricFamily(
        "ingester_oldest_unpersisted_seconds",
        "Age of the oldest unflushed row, 0 if there is none; absent before the log is replayed",
        value=oldest,
    )
    yield GaugeMetricFamily(
        "ingester_fenced", "1 once another process has taken over this id", value=fenced
    )
    yield CounterMetricFamily("ingester_log_segments_created", "Created log segments", created)


def _alarms(scrape: Scrape | None) -> Metric:
    family = GaugeMetricFamily(
        "ingester_alarm",
        "1 while an alarm is raised, by its entry in the runbook",
        labels=["alarm"],
    )
    for name in () if scrape is None else ALARMS:
        family.add_metric([name], float(scrape is not None and name in scrape.alarms))
    return family


def _disks(disk: DiskStatus | None) -> Metric:
    family = GaugeMetricFamily(
        "ingester_disk_free_bytes",
        "Free bytes of a disk: of the log, of spilled rows, of a store on local files",
        labels=["disk"],
    )
    if disk is not None:
        rooms = {
            "log": disk.log_free_bytes,
            "spill": disk.spill_free_bytes,
            "store": disk.store_free_bytes,
        }
        for name, free in rooms.items():
            if free is not None:
                family.add_metric([name], free)
    return family


def _requests(tally: Tally | None) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "ingester_store_requests",
        "Requests to the store; not_found and exists are answers too",
        labels=["operation", "outcome"],
    )
    seconds = HistogramMetricFamily(
        "ingester_store_request_seconds",
        "Duration of requests to the store, answered or not; of a listing, its first page",
        labels=["operation"],
    )
    if tally is not None:
        for (operation, outcome), count in sorted(tally.requests.items()):
            requests.add_metric([operation, outcome], count)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for operation in OPERATIONS:
            buckets = list(zip(bounds, accumulate(tally.buckets[operation]), strict=True))
            seconds.add_metric([operation], buckets, tally.seconds[operation])
    yield requests
    yield seconds


def _certificate(shown: CertificateStatus | None) -> Iterator[Metric]:
    """Yield the metrics of the certificate; without values if there is none."""
    end = GaugeMetricFamily(
        "ingester_tls_certificate_end_timestamp_seconds",
        "When the first certificate of the served chain expires",
        labels=[],
    )
    failed = GaugeMetricFamily(
        "ingester_tls_failed_reloads",
        "How often the changed files of [tls] could not be loaded",
        labels=[],
    )
    if shown is not None:
        end.add_metric([], datetime.fromisoformat(shown.not_after).timestamp())
        failed.add_metric([], shown.failed_reloads)
    yield end
    yield failed


def _sql(shown: SqlStatus | None) -> Iterator[Metric]:
    """Yield the counters of SQL queries."""
    ended = CounterMetricFamily(
        "ingester_sql_queries", "SQL queries that have ended, by outcome", labels=["outcome"]
    )
    for outcome in () if shown is None else ("done", "failed", "cancelled", "timed_out"):
        ended.add_metric([outcome], getattr(shown, outcome))
    yield ended
    rows = None if shown is None else shown.rows
    yield CounterMetricFamily("ingester_sql_rows", "Rows returned by SQL queries", rows)


def _store_log(shown: StoreLogStatus | None) -> Iterator[Metric]:
    """Yield what has a unit or a sum of its own in the log in the store."""
    counters = {
        "puts": "Log objects created in the store",
        "put_bytes": "Bytes of the log objects created in the store",
        "put_seconds": "Seconds that creating the log objects took, in total",
        "failed_puts": "Attempts to create a log object that failed and were repeated",
    }
    for name, text in counters.items():
        field = name.replace("seconds", "s")
        value = None if shown is None else float(getattr(shown, field))
        yield CounterMetricFamily(f"ingester_store_log_{name}", text, value)
    waited = lost = None
    if shown is not None:
        waited = shown.oldest_waiting_s or 0.0
        lost = float(sum(each.operations for each in shown.lost))
    yield GaugeMetricFamily(
        "ingester_store_log_oldest_waiting_seconds",
        "How long the oldest operation has waited for its log object, 0 if none waits",
        value=waited,
    )
    yield GaugeMetricFamily(
        "ingester_lost_operations",
        "Operations acknowledged at disk and lost with the disk that this process replaced",
        value=lost,
    )


_ORIGIN = ("namespace", "origin")


def replication_metrics(replications: Sequence[ReplicationStatus]) -> Iterator[Metric]:
    """Yield the metrics of all replications."""
    for name, text, value in _NUMBERS:
        counts = name == "retries"
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = kind(f"ingester_replication_{name}", text, labels=_ORIGIN)
        for each in replications:
            number = value(each)
            if number is not None:
                family.add_metric((each.namespace, each.origin), number)
        yield family
    yield _tables(replications)
    yield _phases(replications)


def _tables(replications: Sequence[ReplicationStatus]) -> Metric:
    family = GaugeMetricFamily(
        "ingester_replication_tables", "Tables by phase", labels=(*_ORIGIN, "phase")
    )
    for each in replications:
        for phase, count in each.phases.items():
            family.add_metric((each.namespace, each.origin, phase), count)
    return family


def _phases(replications: Sequence[ReplicationStatus]) -> Metric:
    family = GaugeMetricFamily(
        "ingester_replication_table_phase",
        "1 for the current phase of a table; of very many tables only those that do not follow",
        labels=(*_ORIGIN, "table", "phase"),
    )
    # Two tables of a source may have one name here, and Prometheus refuses a scrape with duplicate
    # series. The first one in the order of phases is kept.
    found = {
        (each.namespace, each.origin, table.table): table.phase
        for each in replications
        for table in reversed(each.tables)
    }
    order = sorted(found.items(), key=lambda item: (PHASES.index(item[1]), item[0]))
    for labels, phase in islice(order, MAX_TABLE_PHASES):
        family.add_metric((*labels, phase), 1.0)
    return family


def _lag_s(of: ReplicationStatus) -> float | None:
    if of.lag_s is None:
        return None
    return of.lag_s if of.alive else of.lag_s + of.heard_s


_NUMBERS: tuple[tuple[str, str, Callable[[ReplicationStatus], float | None]], ...] = (
    ("up", "1 while a replicator reports", lambda r: float(r.alive)),
    ("heard_ago_seconds", "Seconds since the last report of a replicator", lambda r: r.heard_s),
    (
        "lag_seconds",
        "Seconds by which the copy is behind its source; grows while no replicator reports",
        _lag_s,
    ),
    (
        "lag_bytes",
        "Bytes of the source's log not yet applied; absent while no replicator reports",
        lambda r: r.lag_bytes if r.alive else None,
    ),
    (
        "slot_bytes",
        "Bytes of log that the source retains for the slot; absent while no replicator reports",
        lambda r: r.slot_bytes if r.alive else None,
    ),
    ("rivals", "Other replicators that report the same origin", lambda r: r.rivals),
    ("retries", "Failed sessions with the source or the daemon", lambda r: r.retries),
)

_NAMESPACE_GAUGES = {
    "bytes": "Bytes in buffers and in admitted batches",
    "queued_bytes": "Bytes of frozen buffers waiting to be flushed",
    "partitions": "Partitions with a buffer",
    "tables": "Open tables",
    "writers": "Open write streams",
    "answers": "Running queries and waiting follower calls",
}


def namespace_metrics(namespaces: Sequence[NamespaceStatus]) -> Iterator[Metric]:
    """Yield the metrics of all namespaces."""
    named = heapq.nlargest(MAX_NAMESPACES, namespaces, key=lambda each: (each.bytes, each.tables))
    known = {each.namespace for each in named}
    rest = [each for each in namespaces if each.namespace not in known]
    for name, text in _NAMESPACE_GAUGES.items():
        family = GaugeMetricFamily(f"ingester_namespace_{name}", text, labels=["namespace"])
        for each in named:
            family.add_metric([each.namespace], getattr(each, name))
        if rest:
            family.add_metric([OTHER_NAMESPACES], sum(getattr(each, name) for each in rest))
        yield family
    quotas = GaugeMetricFamily(
        "ingester_namespace_quota",
        "Quota of a namespace, if one is set",
        labels=["namespace", "quota"],
    )
    for each in named:
        for quota, most in asdict(each.quota).items():
            if most:
                quotas.add_metric([each.namespace, quota], most)
    yield quotas
