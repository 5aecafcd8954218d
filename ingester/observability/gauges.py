"""The gauges of a scrape: how full everything is at one moment.

Law of this file: what already is a number in the daemon is not counted again. Gauges are read from
one ``Gauges`` per scrape, so that they agree with each other; it is made on the loop, which owns
what it reads. Imports trio: part of the daemon.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec
import trio
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.observability.namespace_metrics import namespace_metrics
from ingester.observability.replication_metrics import replication_metrics
from ingester.observability.status import (
    Buffered,
    CertificateStatus,
    LogStatus,
    Memory,
    NamespaceStatus,
    PersistStatus,
    ReplicationStatus,
    SecurityStatus,
    StreamStatus,
)

T = TypeVar("T")


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the daemon's parts that gauges show."""

    memory: Memory
    buffered: Buffered
    persist: PersistStatus
    log: LogStatus
    streams: StreamStatus
    ready: bool
    """Whether calls of any kind may be sent here."""
    accepts_writes: bool
    replications: Sequence[ReplicationStatus] = ()
    namespaces: Sequence[NamespaceStatus] = ()
    security: SecurityStatus = SecurityStatus()
    draining: bool = False
    """Whether the daemon is being drained, or was."""
    drained: bool = False


_GAUGES = {
    "memory_limit_bytes": ("memory.limit_bytes", "memory.limit"),
    "memory_low_bytes": ("memory.low_bytes", "Watermark above which the daemon persists"),
    "memory_high_bytes": ("memory.high_bytes", "Watermark above which the daemon refuses writes"),
    "buffered_rows": ("buffered.rows", "Rows that are not yet in a committed file"),
    "buffered_bytes": ("buffered.bytes", "Memory of the rows that are not yet in a committed file"),
    "buffered_partitions": ("buffered.partitions", "Partitions with a buffer"),
    "persist_queued_jobs": ("persist.queued_jobs", "Frozen buffers that wait for a worker"),
    "persist_queued_bytes": (
        "persist.queued_bytes",
        "Memory of the frozen buffers that wait for a worker",
    ),
    "persist_active_jobs": ("persist.active", "Persists under way"),
    "log_segments": ("log.segments", "Log segments on local disk"),
    "log_bytes": ("log.bytes", "Bytes of the log segments on local disk"),
    "log_pending_operations": ("log.pending", "Operations that wait for their sync"),
    "streams_open": ("streams.open", "Open query streams"),
    "followers_waiting": ("streams.waiting", "Calls of followers that wait for something new"),
    "streams_stalled": ("streams.stalled", "Open query streams whose client has stopped reading"),
    "answer_files": (
        "streams.files",
        "Files on local disk with rows of keyed answers that are sent later",
    ),
    "answer_file_bytes": ("streams.file_bytes", "Bytes of these files, at most"),
    "insecure": (
        "security.insecure",
        "1 while other machines reach a listener that lacks TLS or tokens",
    ),
    "auth_valid_tokens": ("security.callers.valid", "Tokens of auth.tokens that are valid"),
    "auth_problems": (
        "security.callers.problems",
        "Files of tokens and sets of keys that cannot be read as they are",
    ),
    "auth_failed_readings": (
        "security.callers.failed_readings",
        "How often tokens or keys could not be read since the start",
    ),
    "audit_lines": ("security.callers.audited", "Lines of the audit log since the start"),
    "audit_left_out": (
        "security.callers.audit_left_out",
        "Refusals beyond the audit log's bounds, and lines that could not be written",
    ),
    "ready": ("ready", "1 while calls may be sent here: not while it starts, is drained, stops"),
    "accepts_writes": ("accepts_writes", "1 while a write to an open table would be taken"),
    "draining": ("draining", "1 from `ingester drain` on, also when it is done"),
    "drained": ("drained", "1 while everything is in files and the daemon may be stopped"),
}
"""The place of each gauge in :class:`Gauges`, and its help text."""
_READ = {name: attrgetter(path) for name, (path, _) in _GAUGES.items()}


class GaugeCollector(Collector, Generic[T]):
    """Asks for the gauges once per scrape, on the loop that was running when it was made."""

    def __init__(
        self, ask: Callable[[], T], families: Callable[[T | None], Iterator[Metric]]
    ) -> None:
        """``families`` makes metrics of what ``ask`` gives, and those without figures of None."""
        self._ask, self._families = ask, families
        in_loop = trio.lowlevel.in_trio_run()
        self._loop = trio.lowlevel.current_trio_token() if in_loop else None

    def describe(self) -> Iterator[Metric]:
        """Name the gauges without asking for them: at registration the daemon is not up yet."""
        return self._families(None)

    def collect(self) -> Iterator[Metric]:
        """Give the gauges of now."""
        if self._loop is None or trio.lowlevel.in_trio_run():
            return self._families(self._ask())
        return self._families(trio.from_thread.run_sync(self._ask, trio_token=self._loop))


def gauge_families(gauges: Gauges | None) -> Iterator[Metric]:
    """Yield all gauges, with their figures where there are any."""
    for name, (_, text) in _GAUGES.items():
        value = None if gauges is None else _figure(_READ[name](gauges))
        yield GaugeMetricFamily(f"ingester_{name}", text, value=value)
    created = None if gauges is None else gauges.log.created_segments
    yield CounterMetricFamily("ingester_log_segments_created", "Log segments begun", value=created)
    memory = GaugeMetricFamily(
        "ingester_memory_used_bytes", "Bytes that count against memory.limit", labels=["kind"]
    )
    if gauges is not None:
        for kind, used in gauges.memory.by_kind.items():
            memory.add_metric([kind], used)
    yield memory
    yield from _certificate(None if gauges is None else gauges.security.certificate)
    yield from replication_metrics(() if gauges is None else gauges.replications)
    yield from namespace_metrics(() if gauges is None else gauges.namespaces)


def _figure(found: float | list[str]) -> float:
    return float(len(found) if isinstance(found, list) else found)


def _certificate(shown: CertificateStatus | None) -> Iterator[Metric]:
    """The gauges of the certificate that is shown; without figures where there is none."""
    end = GaugeMetricFamily(
        "ingester_tls_certificate_end_timestamp_seconds",
        "When the first certificate of the chain ends that new connections are shown",
        labels=[],
    )
    failed = GaugeMetricFamily(
        "ingester_tls_failed_reloads",
        "How often the changed files of [tls] could not be taken up",
        labels=[],
    )
    if shown is not None:
        end.add_metric([], datetime.fromisoformat(shown.not_after).timestamp())
        failed.add_metric([], shown.failed_reloads)
    yield end
    yield failed
