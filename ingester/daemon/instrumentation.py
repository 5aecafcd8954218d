"""What the daemon has done, counted: for the metrics, the rates and the status of persists.

Law of this file: it counts, and changes nothing else. What an event sets going is the business of
whoever is told of it first (:mod:`ingester.daemon.assembly`). Loop only, but for what is said of
queries.
"""

from __future__ import annotations

import time

from ingester.buffer import BufferHandle
from ingester.dml.operation import Transaction
from ingester.observability.metrics import Metrics
from ingester.observability.rates import RateCounter
from ingester.observability.status import PersistRun
from ingester.query.stream import AnswerStream
from persist.manifest import Add

LAST_PERSISTS = 10


class Counting:
    """What has happened since the start, as far as it is not counted where it happens."""

    def __init__(self, metrics: Metrics, rates: RateCounter) -> None:
        self._metrics = metrics
        self._rates = rates
        self.last_persists: list[PersistRun] = []
        """Newest first."""
        self.persisted_totals = [0, 0, 0]
        """Rows, bytes, files."""
        self.failed_attempts = 0
        """Of persists."""

    def query_opened(self, table: tuple[str, str]) -> None:
        """A query of the table has begun. Any thread."""
        self._metrics.table(*table).queried()
        self._rates.add(queries=1)

    def answered(self, stream: AnswerStream) -> None:
        """An answer was sent to its end. Any thread."""
        self._metrics.table(*stream.table).answered(stream.rows, stream.nbytes)

    def transaction_logged(self, transaction: Transaction) -> None:
        """A transaction of an origin counts as written."""
        self._metrics.transaction_logged(
            sum(done.messages for done in transaction.operations),
            transaction.changes,
            sum(done.rows for done in transaction.operations),
        )
        for done in transaction.operations:
            self._metrics.table(*done.table).wrote(done.rows, done.nbytes, done.operations)
            self._rates.add(rows=done.rows, nbytes=done.nbytes, operations=done.operations)

    def persisted(
        self, handle: BufferHandle, adds: tuple[Add, ...], queued_s: float, active_s: float
    ) -> None:
        """The buffer's rows are in these committed files."""
        table = handle.partition.table
        nbytes = sum(add.bytes for add in adds)
        self._metrics.persist_finished(queued_s, active_s, queued_s + active_s)
        self._metrics.table(table.namespace, table.name).persisted(
            len(adds), handle.total_rows, nbytes
        )
        for index, count in enumerate((handle.total_rows, nbytes, len(adds))):
            self.persisted_totals[index] += count
        run = PersistRun(
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            namespace=table.namespace,
            table=table.name,
            partition=handle.partition.name,
            rows=handle.total_rows,
            bytes=nbytes,
            queued_s=queued_s,
            active_s=active_s,
            total_s=queued_s + active_s,
        )
        self.last_persists = [run, *self.last_persists][:LAST_PERSISTS]

    def persist_failed(self) -> None:
        """An attempt to persist has failed; it is repeated."""
        self.failed_attempts += 1
        self._metrics.persist_failed()
