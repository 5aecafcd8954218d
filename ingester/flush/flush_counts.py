"""Counts of flushes, for the status and the metrics, and the last failure. Loop only."""

from __future__ import annotations

import time

import msgspec

from ingester.buffer import FlushJob
from ingester.observability.metrics import Metrics
from ingester.observability.status import Persisted, PersistRun, PersistStatus
from persist.manifest import Add

LAST_FLUSHES = 10


class FlushCounts:
    """Counts finished and failed flushes since the start."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._persisted = Persisted()
        self._failed_attempts = 0
        self.last_failure: tuple[float, str] | None = None
        """When a flush attempt last failed, by the monotonic clock, and why; None once the buffer
        that failed is in files."""
        self._failed_first_row: tuple[object, ...] | None = None
        self._last: list[PersistRun] = []

    def flushed(
        self, job: FlushJob, adds: tuple[Add, ...], queued_s: float, active_s: float
    ) -> None:
        """Count a buffer whose rows are in these committed files."""
        table, rows, nbytes = job.table, job.handle.total_rows, sum(a.bytes for a in adds)
        self._metrics.persist_finished(queued_s, active_s)
        self._metrics.table(table.namespace, table.name).persisted(len(adds), rows, nbytes)
        if _first_row(job) == self._failed_first_row:
            self.last_failure = self._failed_first_row = None
        before = self._persisted
        self._persisted = Persisted(
            rows=before.rows + rows, bytes=before.bytes + nbytes, files=before.files + len(adds)
        )
        run = PersistRun(
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            namespace=table.namespace,
            table=table.name,
            partition=job.partition_name,
            rows=rows,
            bytes=nbytes,
            queued_s=queued_s,
            active_s=active_s,
            total_s=queued_s + active_s,
        )
        self._last = [run, *self._last][:LAST_FLUSHES]

    def failed(self, job: FlushJob, error: Exception) -> None:
        """Count a failed attempt; it is retried."""
        self._failed_attempts += 1
        self._failed_first_row = _first_row(job)
        self.last_failure = (time.monotonic(), str(error))
        self._metrics.persist_failed()

    def add_to(self, queue: PersistStatus) -> PersistStatus:
        """Return the status of the queue with these counts."""
        return msgspec.structs.replace(
            queue,
            persisted=self._persisted,
            failed_attempts=self._failed_attempts,
            last=self._last,
        )


def _first_row(job: FlushJob) -> tuple[object, ...]:
    """What identifies a buffer without referring to its rows."""
    return job.table.key, job.handle.partition, job.handle.epoch, job.handle.first_seq
