"""Every counter and histogram of the daemon, named ``ingester_<what>_<unit>``.

Labels are bounded: ``namespace`` and ``table`` of at most ``MAX_TABLES`` tables, namespaces with
quotas (``MAX_NAMESPACES``), transformer classes (``MAX_CLASSES``), the rest counted as ``_other``;
the codes of the error table, the quotas, the limits and the outcomes. Gauges are in
:mod:`ingester.observability.gauges`.

The write path looks up no label: children are made once and kept (:meth:`Metrics.table`). What each
acknowledgement counts is plain additions without a lock (:class:`WrittenTables`, :class:`Timings`):
the event loop alone adds, any thread may collect. All others may be used from any thread. A scrape
is encoded in a thread.

To count something new, add an attribute in one of the ``_register`` methods, call it where the
thing happens, and run ``make docs``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ingester.config.settings import LimitsSettings
from ingester.errors import ERRORS
from ingester.observability.gauges import MAX_NAMESPACES
from ingester.observability.history import RateCounter

MAX_TABLES = 1000
MAX_CLASSES = 100
OTHER = "_other"
"""The label of everything beyond these limits; no table, namespace or class has this name."""
OUTCOMES = ("changed", "unchanged", "skipped", "failed", "timed_out", "refused")
"""The outcomes of a transformer's call for a batch."""

REFUSAL_CODES = tuple(dict.fromkeys(kind.code for kind in ERRORS.values()))

LIMITS = (
    *LimitsSettings.__struct_fields__,
    *("max_filter_terms", "max_filter_bytes", "max_cpu"),
)
"""The limits whose refusals are counted: the settings of ``[limits]``, and those of one query."""

# The values of ``ingester.buffer.Why``; a test compares the two.
FREEZE_REASONS = (
    "age",
    "lag",
    "bytes",
    "messages",
    "memory",
    "partitions",
    "disk",
    "epoch",
    "asked",
    "stop",
)

# Acknowledgements and syncs take about a millisecond; on a slow disk seconds.
_FAST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Flushes: from a small local file to a queue behind an unreachable store.
_SLOW_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
# SQL queries: from a warm ``SELECT 1`` to the default of sql.max_time.
_SQL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_GROUP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

_TABLE = ("namespace", "table")
_CLASS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)
_CLASS = ("class",)
Labels = tuple[str, str]


class WrittenCounts:
    """Acknowledged operations, rows and bytes of one table."""

    __slots__ = ("nbytes", "operations", "rows")

    def __init__(self) -> None:
        self.operations = self.rows = self.nbytes = 0

    def add(self, rows: int, nbytes: int, operations: int = 1) -> None:
        """Count one or more operations."""
        self.operations += operations
        self.rows += rows
        self.nbytes += nbytes


class WrittenTables(Collector):
    """The :class:`Written` of all tables, as counters by namespace and table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with ``registry``."""
        self._tables: dict[Labels, WrittenCounts] = {}
        registry.register(self)

    def of(self, namespace: str, table: str) -> WrittenCounts:
        """Return the counts of a table, the same object each time. Any thread."""
        return self._tables.setdefault((namespace, table), WrittenCounts())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters with their values."""
        families = self.describe()
        for labels, written in list(self._tables.items()):
            figures = (written.operations, written.rows, written.nbytes)
            for family, figure in zip(families, figures, strict=True):
                family.add_metric(labels, figure)
        yield from families

    def describe(self) -> list[CounterMetricFamily]:
        """Return the counters without values."""
        texts = {
            "operations": "Acknowledged operations",
            "rows": "Acknowledged rows",
            "bytes": "Arrow bytes of acknowledged rows, and about 200 per batch",
        }
        return [
            CounterMetricFamily(f"ingester_{name}", text, labels=("namespace", "table"))
            for name, text in texts.items()
        ]


class Timings(Collector):
    """A histogram of seconds."""

    def __init__(
        self, name: str, text: str, buckets: Iterable[float], registry: CollectorRegistry
    ) -> None:
        """Register with ``registry``; ``buckets`` are upper bounds, ascending."""
        self._name, self._text = name, text
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count one or more timings of the same length."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of the buckets, ascending."""
        return self._bounds

    def counts(self) -> list[int]:
        """Return the counts of the buckets and of the overflow, not cumulative."""
        return list(self._counts)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram with its values."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(list(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)

    def describe(self) -> list[HistogramMetricFamily]:
        """Return the histogram without values."""
        return [HistogramMetricFamily(self._name, self._text)]


class TransformerMetrics:
    """The counters of transformers by class. Any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with ``registry``."""
        batches = "Batches given to a transformer, by outcome"
        self._batches = Counter(
            "ingester_transformer_batches", batches, ("class", "outcome"), registry=registry
        )
        self._rows_in = Counter(
            "ingester_transformer_rows_in", "Rows given to a transformer", _CLASS, registry=registry
        )
        self._rows_out = Counter(
            "ingester_transformer_rows_out",
            "Rows returned by the transformer",
            _CLASS,
            registry=registry,
        )
        self._seconds = Histogram(
            "ingester_transformer_seconds",
            "One call of a transformer, including the wait for a thread",
            _CLASS,
            buckets=_CLASS_S,
            registry=registry,
        )
        self._known: set[str] = set()

    def called(self, name: str, outcome: str, seconds: float, rows_in: int, rows_out: int) -> None:
        """Count one call."""
        if name not in self._known:
            if len(self._known) >= MAX_CLASSES:
                name = OTHER
            self._known.add(name)
        self._batches.labels(name, outcome).inc()
        self._rows_in.labels(name).inc(rows_in)
        self._rows_out.labels(name).inc(rows_out)
        self._seconds.labels(name).observe(seconds)


class TableMetrics:
    """The counters of one table. Any thread, but ``wrote`` on the loop only."""

    __slots__ = ("_answered", "_persisted", "queried", "saw_duplicate", "wrote")

    def __init__(
        self, written: WrittenCounts, counters: Mapping[str, Counter], namespace: str, table: str
    ) -> None:
        child = {name: counter.labels(namespace, table) for name, counter in counters.items()}
        self.wrote = written.add
        """Count acknowledged operations, their rows and bytes."""
        self.saw_duplicate = child["duplicates"].inc
        """Count a repeated operation, answered but not applied again."""
        self.queried = child["queries"].inc
        """Count a started query."""
        self._answered = (child["query_rows"], child["query_bytes"])
        self._persisted = (
            child["persisted_files"],
            child["persisted_rows"],
            child["persisted_bytes"],
        )

    def answered(self, rows: int, nbytes: int) -> None:
        """Count a completely sent answer."""
        for counter, amount in zip(self._answered, (rows, nbytes), strict=True):
            counter.inc(amount)

    def persisted(self, files: int, rows: int, nbytes: int) -> None:
        """Count a commit; ``nbytes`` is the size of the files."""
        for counter, amount in zip(self._persisted, (files, rows, nbytes), strict=True):
            counter.inc(amount)


_TABLE_COUNTERS = {
    "duplicates": "Repeated operations of an origin",
    "queries": "Started queries",
    "query_rows": "Rows sent to queries",
    "query_bytes": "Arrow bytes sent to queries",
    "persisted_files": "Files committed",
    "persisted_rows": "Rows in files committed",
    "persisted_bytes": "Bytes of files committed",
}


class Metrics:
    """All counters and histograms, and the rates of the last minute.

    Where one event changes one metric, the attribute is the metric's own ``inc`` or ``observe``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything, including the process's memory, CPU and open files.

        Raises:
            ValueError: the registry already has metrics of these names.
        """
        self._registry = registry
        self.rates = RateCounter(time.monotonic)
        """Rows, bytes, operations and queries per second."""
        self.refusals = 0
        """The number of all refusals; two at the same moment may count as one."""
        self._tables: dict[tuple[str, str], TableMetrics] = {}
        self._written = WrittenTables(registry)
        self._table_counters = {
            name: Counter(f"ingester_{name}", text, _TABLE, registry=registry)
            for name, text in _TABLE_COUNTERS.items()
        }
        ProcessCollector(registry=registry)
        self._register_log()
        self._register_persists()
        self._register_compaction()
        self._register_requests()
        self.transformed = TransformerMetrics(registry).called
        """Count a call of a transformer: class, outcome, seconds, rows in, rows out."""

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"ingester_{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ingester_{name}", text, buckets=buckets, registry=self._registry)

    def _register_log(self) -> None:
        counter, histogram = self._counter, self._histogram
        text = "Time from a decoded batch to its answer"
        self.ack_timings = Timings("ingester_ack_seconds", text, _FAST_S, self._registry)
        self.acknowledged = self.ack_timings.observe
        """Observe the seconds from a decoded batch to its answer, for one or more batches."""
        self._group = histogram("group_operations", "Operations per group commit", _GROUP)
        self._sync = histogram("sync_seconds", "Duration of one sync of the log", _FAST_S)
        self._log_written = counter("log_written_bytes", "Bytes appended to the log")
        self.segments_removed = counter("log_segments_removed", "Log segments removed").inc
        torn = "Bytes cut from torn tails of the log, never acknowledged"
        self.tail_cut = counter("log_torn_bytes", torn).inc
        self.replayed = counter("replayed_operations", "Operations replayed at start").inc
        self._transactions = counter("replication_transactions", "Replicated transactions")
        self._messages = counter(
            "replication_messages", "Messages with rows in replicated transactions"
        )
        self._changes = counter("replication_changes", "Row changes in replicated transactions")
        self._folded_rows = counter(
            "replication_folded_rows", "Rows of replicated transactions after folding their changes"
        )

    def _register_persists(self) -> None:
        counter, histogram = self._counter, self._histogram
        frozen = Counter(
            "ingester_buffers_frozen",
            "Frozen buffers, by reason",
            ("why",),
            registry=self._registry,
        )
        self._frozen = {why: frozen.labels(why) for why in FREEZE_REASONS}
        self._queued = histogram(
            "persist_queued_seconds", "Time a frozen buffer waits for a worker", _SLOW_S
        )
        self._active = histogram(
            "persist_active_seconds", "Time to sort, encode, upload and commit a buffer", _SLOW_S
        )
        self._total = histogram(
            "persist_total_seconds", "Time from the freeze to the commit", _SLOW_S
        )
        failed = "Failed flush attempts"
        self.persist_failed = counter("persist_failed_attempts", failed).inc
        self._publishing = histogram(
            "publish_seconds", "Duration of one publication of one table", _SLOW_S
        )
        self._publish_failures = counter("publish_failures", "Failed publications of tables")
        self._cleaning = histogram(
            "clean_up_seconds", "Duration of one garbage collection of one table", _SLOW_S
        )
        self._cleaned_objects = counter(
            "clean_up_deleted_objects", "Objects deleted by garbage collection"
        )
        self._cleaned_bytes = counter(
            "clean_up_deleted_bytes", "Bytes of objects deleted by garbage collection"
        )
        self._clean_up_failures = counter("clean_up_failed_runs", "Failed garbage collections")
        self._cleaned_at = Gauge(
            "ingester_clean_up_last_timestamp_seconds",
            "When the last garbage collection ended; 0 before the first",
            registry=self._registry,
        )

    def _register_compaction(self) -> None:
        counter = self._counter
        self._compacting = self._histogram(
            "compaction_seconds", "Duration of one compaction of one table", _SLOW_S
        )
        self._compacted = {
            name: counter(f"compaction_{name}", text)
            for name, text in (
                ("replaced_files", "Files replaced by compaction"),
                ("replaced_bytes", "Bytes of files replaced by compaction"),
                ("new_files", "Files written by compaction"),
                ("new_bytes", "Bytes of files written by compaction"),
                ("conflicts", "Groups of files that were changed during their compaction"),
                ("failed_runs", "Failed compactions"),
            )
        }

    def _register_requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        refusals = Counter(
            "ingester_refusals", "Requests refused", ("code",), registry=self._registry
        )
        self._refusals = {code: refusals.labels(code) for code in REFUSAL_CODES}
        self._quota_refusals = Counter(
            "ingester_quota_refused",
            "Requests refused by a quota or by the fair share",
            ("namespace", "quota"),
            registry=self._registry,
        )
        self._namespaces: set[str] = set()
        self._limits = Counter(
            "ingester_limit_refused",
            "Requests refused by a limit of the settings",
            ("limit",),
            registry=self._registry,
        )
        for name in LIMITS:
            self._limits.labels(name)  # exported from the start, at 0
        left = "Clients that disconnected before their last answer"
        self.client_gone = counter("clients_gone", left).inc
        first = "Time from a query's ticket to its first batch"
        self.first_batch_sent = histogram("query_first_batch_seconds", first, _FAST_S).observe
        text = "Time from an SQL statement to the end of its query"
        self.sql_ended = histogram("sql_seconds", text, _SQL_S).observe
        """Observe the seconds of an SQL query, whatever its outcome."""
        self.spilled = counter("spilled_bytes", "Bytes spilled for open snapshots").inc
        merged = "Bytes of keyed answers written to local files"
        self.result_spilled = counter("answer_files_written_bytes", merged).inc
        expired = "Query streams that lost their snapshot by query.client_timeout"
        self.stream_timed_out = counter("query_timeouts", expired).inc

    def table(self, namespace: str, table: str) -> TableMetrics:
        """Return the counters of a table, the same object each time."""
        key = (namespace, table)
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= MAX_TABLES and key != (OTHER, OTHER):
                return self.table(OTHER, OTHER)
            # setdefault: two threads may get here at once, both must count into one object.
            made = TableMetrics(self._written.of(*key), self._table_counters, *key)
            found = self._tables.setdefault(key, made)
        return found

    def query_opened(self, table: tuple[str, str]) -> None:
        """Count a query of the table that has started."""
        self.table(*table).queried()
        self.rates.add(queries=1)

    def refused(self, code: str) -> None:
        """Count a refusal by its ``code``; an unknown code counts as ``internal``."""
        self.refusals += 1
        self._refusals.get(code, self._refusals["internal"]).inc()

    def quota_refused(self, namespace: str, quota: str) -> None:
        """Count a refusal of a namespace by one of its quotas or its fair share."""
        if namespace not in self._namespaces:
            if len(self._namespaces) >= MAX_NAMESPACES:
                namespace = OTHER
            self._namespaces.add(namespace)
        self._quota_refusals.labels(namespace, quota).inc()

    def limit_refused(self, limit: str) -> None:
        """Count a refusal by a limit; ``limit`` is the setting's name without its section."""
        self._limits.labels(limit).inc()

    def group_synced(self, operations: int, nbytes: int, sync_s: float) -> None:
        """Count a group commit."""
        self._group.observe(operations)
        self._log_written.inc(nbytes)
        self._sync.observe(sync_s)

    def frozen(self, why: str) -> None:
        """Count a frozen buffer."""
        self._frozen[why].inc()

    def transaction_logged(self, messages: int, changes: int, rows: int) -> None:
        """Count a replicated transaction; ``rows`` is their number after folding."""
        self._transactions.inc()
        self._messages.inc(messages)
        self._changes.inc(changes)
        self._folded_rows.inc(rows)

    def persist_finished(self, queued_s: float, active_s: float) -> None:
        """Count a committed flush."""
        self._queued.observe(queued_s)
        self._active.observe(active_s)
        self._total.observe(queued_s + active_s)

    def published(self, seconds: float, failed: bool) -> None:
        """Count one publication of one table in its open formats."""
        self._publishing.observe(seconds)
        self._publish_failures.inc(failed)

    def compaction_ended(self, seconds: float, counts: Mapping[str, int]) -> None:
        """Count one compaction of one table; ``counts`` are fields of its status."""
        self._compacting.observe(seconds)
        for name, counter in self._compacted.items():
            counter.inc(counts.get(name, 0))

    def clean_up_ended(self, objects: int, nbytes: int, seconds: float, failed: bool) -> None:
        """Count one garbage collection of one table."""
        self._cleaning.observe(seconds)
        self._cleaned_objects.inc(objects)
        self._cleaned_bytes.inc(nbytes)
        self._clean_up_failures.inc(failed)
        self._cleaned_at.set_to_current_time()
