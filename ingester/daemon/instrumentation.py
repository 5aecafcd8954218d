"""Counts of what the daemon has done: for the metrics, the rates and the status of flushes.

Law of this file: it counts, and changes nothing else. What an event sets going is the business of
whoever is told of it first (:mod:`ingester.daemon.assembly`). Loop only, but for what is said of
queries.
"""

from __future__ import annotations

import time

import msgspec

from ingester.buffer import FlushJob
from ingester.dml.operation import Transaction
from ingester.observability.metrics import Metrics
from ingester.observability.rates import RateCounter
from ingester.observability.status import Persisted, PersistRun, PersistStatus
from ingester.query.stream import AnswerStream
from persist.manifest import Add

LAST_PERSISTS = 10


class Instrumentation:
    """Counts what happens from the start on, as far as it is not counted where it happens."""

    def __init__(self, metrics: Metrics, rates: RateCounter) -> None:
        self._metrics = metrics
        self._rates = rates
        self._persisted = Persisted()
        self._failed_attempts = 0
        self.last_failure: tuple[float, str] | None = None
        """When an attempt to persist has failed last, on the monotonic clock, and why; None once
        the buffer that failed then is in files: others that fail are tried again, and say so."""
        self._failed_first_row: tuple[object, ...] | None = None
        self._last_persists: list[PersistRun] = []

    @property
    def failed_attempts(self) -> int:
        """The attempts to persist that have failed so far."""
        return self._failed_attempts

    @property
    def persisted_bytes(self) -> int:
        """The bytes of files that were committed so far."""
        return self._persisted.bytes

    def query_opened(self, table: tuple[str, str]) -> None:
        """Count a query of the table that has begun. Any thread."""
        self._metrics.table(*table).queried()
        self._rates.add(queries=1)

    def answered(self, stream: AnswerStream) -> None:
        """Count an answer that was sent to its end. Any thread."""
        self._metrics.table(*stream.table).answered(stream.rows, stream.nbytes)

    def transaction_logged(self, transaction: Transaction) -> None:
        """Count a transaction of an origin as written."""
        self._metrics.transaction_logged(
            sum(done.messages for done in transaction.operations),
            transaction.changes,
            sum(done.rows for done in transaction.operations),
        )
        for done in transaction.operations:
            self._metrics.table(*done.table).wrote(done.rows, done.nbytes, done.operations)
            self._rates.add(rows=done.rows, nbytes=done.nbytes, operations=done.operations)

    def persisted(
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
        self._last_persists = [run, *self._last_persists][:LAST_PERSISTS]

    def persist_failed(self, job: FlushJob, error: Exception) -> None:
        """Count a buffer's flush that has failed; it is repeated."""
        self._failed_attempts += 1
        self._failed_first_row = _first_row(job)
        self.last_failure = (time.monotonic(), str(error))
        self._metrics.persist_failed()

    def persists(self, queue: PersistStatus) -> PersistStatus:
        """Return the status of flushes: those done so far, beside what is on its way."""
        return msgspec.structs.replace(
            queue,
            persisted=self._persisted,
            failed_attempts=self._failed_attempts,
            last=self._last_persists,
        )


def _first_row(job: FlushJob) -> tuple[object, ...]:
    """What names a buffer, and holds none of its rows."""
    return job.table.key, job.handle.partition, job.handle.epoch, job.handle.first_seq
