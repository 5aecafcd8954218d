"""Every counter and histogram of the daemon, in one place, named ``ingester_<what>_<unit>``.

Law of this file: labels are bounded. The only labels are ``namespace`` and ``table`` (of at most
``MAX_TABLES`` tables, the rest counts as ``_other``), the namespaces of quotas (of at most
``MAX_NAMESPACES``, likewise) and the quotas' names, the codes of the error table, the kinds of
memory, the limits of the settings, and the classes of transformers with what came of their calls,
bounded likewise. The way of a write looks up no label: children are made once and kept
(``Metrics.table`` gives them from a dict). Gauges are in :mod:`ingester.observability.gauges`.

Counters and histograms may be used from any thread, but for what an acknowledgement counts, which
is of the event loop alone (:mod:`ingester.observability.counters`). A scrape is encoded in a thread
(0.15 s for 1,000 tables, too long for the event loop).
"""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from ingester.config.settings import LimitsSettings
from ingester.errors import ERRORS
from ingester.observability.counters import Timings, Written, WrittenTables
from ingester.observability.gauges import GaugeCollector, Gauges, gauge_families
from ingester.observability.namespace_metrics import MAX_NAMESPACES
from ingester.observability.transformer_metrics import TransformerMetrics

MAX_TABLES = 1000
OTHER = "_other"
"""Label of the tables beyond ``MAX_TABLES``, and of the namespaces beyond ``MAX_NAMESPACES``; none
can have this name."""

REFUSAL_CODES = tuple(dict.fromkeys(kind.code for kind in ERRORS.values()))

LIMITS = (
    *LimitsSettings.__struct_fields__,
    *("max_filter_terms", "max_filter_bytes", "max_cpu"),
)
"""The limits that are counted by name: the settings of the section ``limits``, and of ``query``
those of one query."""

# Those of ``ingester.buffer.Why``; a test holds the two together.
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

# Acknowledgements and syncs lie around a millisecond; a slow disk takes seconds.
_FAST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Persists: from a small local file to a queue behind a store that is away.
_SLOW_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_GROUP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

_TABLE = ("namespace", "table")


class TableMetrics:
    """The counters of one table; ``wrote`` is of the loop alone."""

    __slots__ = ("_answered", "_persisted", "queried", "saw_duplicate", "wrote")

    def __init__(
        self, written: Written, counters: Mapping[str, Counter], namespace: str, table: str
    ) -> None:
        child = {name: counter.labels(namespace, table) for name, counter in counters.items()}
        self.wrote = written.add
        """Counts acknowledged operations, their rows and bytes."""
        self.saw_duplicate = child["duplicates"].inc
        """Counts an operation that was answered but not applied again."""
        self.queried = child["queries"].inc
        """Counts a query that has begun."""
        self._answered = (child["query_rows"], child["query_bytes"])
        self._persisted = (
            child["persisted_files"],
            child["persisted_rows"],
            child["persisted_bytes"],
        )

    def answered(self, rows: int, nbytes: int) -> None:
        """Count the rows of an answer that was sent to its end."""
        for counter, amount in zip(self._answered, (rows, nbytes), strict=True):
            counter.inc(amount)

    def persisted(self, files: int, rows: int, nbytes: int) -> None:
        """Count what one commit made visible; ``nbytes`` of files."""
        for counter, amount in zip(self._persisted, (files, rows, nbytes), strict=True):
            counter.inc(amount)


_TABLE_COUNTERS = {
    "duplicates": "Operations of an origin that had been taken before",
    "queries": "Queries that have begun",
    "query_rows": "Rows sent to queries",
    "query_bytes": "Arrow bytes sent to queries",
    "persisted_files": "Files committed",
    "persisted_rows": "Rows in files committed",
    "persisted_bytes": "Bytes of files committed",
}


class Metrics:
    """All counters and histograms, registered once with ``registry``.

    Where one thing happens one figure moves: then the attribute is the counter's own ``inc`` or the
    histogram's own ``observe``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything, and the process's own figures (memory, CPU, open files).

        Raises:
            ValueError: the registry already has metrics of these names.
        """
        self._registry = registry
        self.refusals = 0
        """The number of all refusals; two that come at one moment may count as one."""
        self._tables: dict[tuple[str, str], TableMetrics] = {}
        self._written = WrittenTables(registry)
        self._table_counters = {
            name: Counter(f"ingester_{name}", text, _TABLE, registry=registry)
            for name, text in _TABLE_COUNTERS.items()
        }
        ProcessCollector(registry=registry)
        self._register_log()
        self._register_persists()
        self._register_requests()
        self.transformed = TransformerMetrics(registry).called
        """Counts a call of a transformer: class, outcome, seconds, rows in, rows out."""

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"ingester_{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ingester_{name}", text, buckets=buckets, registry=self._registry)

    def _register_log(self) -> None:
        counter, histogram = self._counter, self._histogram
        text = "From a decoded batch to its answer"
        self.ack_timings = Timings("ingester_ack_seconds", text, _FAST_S, self._registry)
        self.acknowledged = self.ack_timings.observe
        """Takes the seconds from a decoded batch, or several, to the answer."""
        self._group = histogram("group_operations", "Operations written and synced at once", _GROUP)
        self._sync = histogram("sync_seconds", "One sync of the log", _FAST_S)
        self._log_written = counter("log_written_bytes", "Bytes appended to the log")
        self.segments_removed = counter("log_segments_removed", "Log segments let go").inc
        torn = "Bytes cut from torn tails, never acknowledged"
        self.tail_cut = counter("log_torn_bytes", torn).inc
        self.replayed = counter("replayed_operations", "Operations read back at start").inc
        self._transactions = counter("replication_transactions", "Transactions of origins")
        self._messages = counter("replication_messages", "Their messages with rows")
        self._changes = counter("replication_changes", "Changes of rows in them")
        self._folded_rows = counter("replication_folded_rows", "Rows that the changes came to")

    def _register_persists(self) -> None:
        counter, histogram = self._counter, self._histogram
        frozen = Counter(
            "ingester_buffers_frozen",
            "Buffers on their way to files",
            ("why",),
            registry=self._registry,
        )
        self._frozen = {why: frozen.labels(why) for why in FREEZE_REASONS}
        self._queued = histogram("persist_queued_seconds", "A frozen buffer's wait", _SLOW_S)
        self._active = histogram("persist_active_seconds", "Sort, encode, put, commit", _SLOW_S)
        self._total = histogram("persist_total_seconds", "From the freeze to the commit", _SLOW_S)
        failed = "Persist attempts that failed"
        self.persist_failed = counter("persist_failed_attempts", failed).inc
        self._cleaning = histogram("clean_up_seconds", "One clean-up of one table", _SLOW_S)
        self._cleaned_objects = counter("clean_up_deleted_objects", "Objects that clean-up deleted")
        self._cleaned_bytes = counter("clean_up_deleted_bytes", "Bytes of these objects")
        self._clean_up_failures = counter("clean_up_failed_runs", "Clean-ups that failed")
        self._cleaned_at = Gauge(
            "ingester_clean_up_last_timestamp_seconds",
            "When the last clean-up ended, 0 before the first",
            registry=self._registry,
        )

    def _register_requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        refusals = Counter(
            "ingester_refusals", "Requests refused", ("code",), registry=self._registry
        )
        self._refusals = {code: refusals.labels(code) for code in REFUSAL_CODES}
        self._quota_refusals = Counter(
            "ingester_quota_refused",
            "Requests refused by a quota, or for having more than a share",
            ("namespace", "quota"),
            registry=self._registry,
        )
        self._namespaces: set[str] = set()
        limits = Counter(
            "ingester_limit_refused",
            "What a limit of the settings has kept out, or ended",
            ("limit",),
            registry=self._registry,
        )
        self._limits = {name: limits.labels(name) for name in LIMITS}
        left = "Clients that left before their last answer"
        self.client_gone = counter("clients_gone", left).inc
        first = "From a query's ticket to its first batch"
        self.first_batch_sent = histogram("query_first_batch_seconds", first, _FAST_S).observe
        self.spilled = counter("spilled_bytes", "Bytes spilled for open snapshots").inc
        merged = "Bytes of rows of keyed answers put into files on local disk"
        self.result_spilled = counter("answer_files_written_bytes", merged).inc
        expired = "Query streams that lost their snapshot"
        self.stream_timed_out = counter("query_timeouts", expired).inc

    def table(self, namespace: str, table: str) -> TableMetrics:
        """Give the counters of a table, the same object each time; keep it where that is easy."""
        key = (namespace, table)
        found = self._tables.get(key)
        if found is None:
            if len(self._tables) >= MAX_TABLES and key != (OTHER, OTHER):
                return self.table(OTHER, OTHER)
            # setdefault: two threads may get here at once, both must count into one object.
            made = TableMetrics(self._written.of(*key), self._table_counters, *key)
            found = self._tables.setdefault(key, made)
        return found

    def watch(self, gauges: Callable[[], Gauges]) -> None:
        """Show what ``gauges`` gives, asked once per scrape; call once, on the loop.

        Args:
            gauges: called on the event loop, whatever thread scrapes; quick, without blocking.
        """
        self._registry.register(GaugeCollector(gauges, gauge_families))

    def refused(self, code: str) -> None:
        """Count one refusal by its ``code``; an unknown code counts as ``internal``."""
        self.refusals += 1
        self._refusals.get(code, self._refusals["internal"]).inc()

    def quota_refused(self, namespace: str, quota: str) -> None:
        """Count a refusal of a namespace by one of its quotas, or for the want of a share."""
        if namespace not in self._namespaces:
            if len(self._namespaces) >= MAX_NAMESPACES:
                namespace = OTHER
            self._namespaces.add(namespace)
        self._quota_refusals.labels(namespace, quota).inc()

    def limit_refused(self, limit: str) -> None:
        """Count what a limit has kept out, or ended; ``limit`` is its name in ``LIMITS``."""
        self._limits[limit].inc()

    def group_synced(self, operations: int, nbytes: int, sync_s: float) -> None:
        """Observe one group commit."""
        self._group.observe(operations)
        self._log_written.inc(nbytes)
        self._sync.observe(sync_s)

    def frozen(self, why: str) -> None:
        """Count a buffer that was frozen."""
        self._frozen[why].inc()

    def transaction_logged(self, messages: int, changes: int, rows: int) -> None:
        """Count a replication transaction, and the rows that it came to."""
        self._transactions.inc()
        self._messages.inc(messages)
        self._changes.inc(changes)
        self._folded_rows.inc(rows)

    def persist_finished(self, queued_s: float, active_s: float) -> None:
        """Observe one committed flush."""
        self._queued.observe(queued_s)
        self._active.observe(active_s)
        self._total.observe(queued_s + active_s)

    def clean_up_ended(self, objects: int, nbytes: int, seconds: float, failed: bool) -> None:
        """Count one clean-up of one table and what it deleted."""
        self._cleaning.observe(seconds)
        self._cleaned_objects.inc(objects)
        self._cleaned_bytes.inc(nbytes)
        self._clean_up_failures.inc(failed)
        self._cleaned_at.set_to_current_time()
