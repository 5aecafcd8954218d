"""The metrics of ``ingester follow``, served by ``metrics_server``.

Labels are bounded: the command's tables, the calls of a sink, and error codes. The status is read
at each scrape; only the calls of sinks are counted continuously.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.client import ClientError
from ingester.followers import CopyStatus, FollowedTable

_CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TABLE = ("namespace", "table")
Statuses = Callable[[], Sequence[CopyStatus]]


class FollowMetrics:
    """The registry of a follower's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "ingester_follower_call_seconds",
            "Calls of a sink: put, put_files, delete, commit and others",
            (*_TABLE, "call"),
            buckets=_CALL_S,
            registry=self.registry,
        )
        self._errors = Counter(
            "ingester_follower_errors",
            "Calls of a sink that raised",
            (*_TABLE, "call", "code"),
            registry=self.registry,
        )

    def observe(
        self, table: FollowedTable, call: str, seconds: float, error: BaseException | None
    ) -> None:
        """Count a call of a sink."""
        self._seconds.labels(table.namespace, table.table, call).observe(seconds)
        if error is not None:
            code = error.code if isinstance(error, ClientError) else "sink"
            self._errors.labels(table.namespace, table.table, call, code).inc()

    def tell_of(self, statuses: Statuses) -> None:
        """Register the status of each table, as returned by ``statuses``."""
        self.registry.register(_Progress(statuses))


class _Progress(Collector):
    """Collects the status of each table."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def describe(self) -> list[Metric]:
        """Empty: the tables are not known yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        for name, text, value in _NUMBERS:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"ingester_follower_{name}", text, labels=_TABLE)
            for status in statuses:
                number = value(status)
                if number is not None:
                    family.add_metric((status.namespace, status.table), number)
            yield family


_NUMBERS: tuple[tuple[str, str, Callable[[CopyStatus], float | None]], ...] = (
    ("up", "1 while the copy is live", lambda s: float(s.phase == "live")),
    ("lag_seconds", "Age of the copy", lambda s: s.progress.lag_s()),
    (
        "lag_operations",
        "Operations that the copy lacked at the daemon's last answer",
        lambda s: s.progress.lag_operations,
    ),
    ("lag_rows", "Rows that the daemon has and the copy lacks", lambda s: s.progress.lag_rows),
    ("rows_put_total", "Rows written to the copy since the start", lambda s: s.progress.put_rows),
    ("rows_deleted_total", "Keys deleted since the start", lambda s: s.progress.deleted_rows),
    ("version", "Manifest version whose files the copy has", lambda s: s.version),
    ("table_version", "Version of the table as a whole", lambda s: s.table_version),
    ("fill_files", "Files of the version being filled", lambda s: s.progress.files[1]),
    ("fill_files_done", "Files of the version already in the copy", lambda s: s.progress.files[0]),
    ("fill_bytes", "Bytes of the version being filled", lambda s: s.progress.bytes[1]),
    ("fill_bytes_done", "Bytes of the version already in the copy", lambda s: s.progress.bytes[0]),
)


def unready(statuses: Statuses) -> str:
    """A line for each copy that is not live."""
    late = [s for s in statuses() if s.phase != "live"]
    return "".join(f"{s.namespace}/{s.table}: {s.phase}\n" for s in late)
