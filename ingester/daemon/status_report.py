"""What the daemon says about itself: ``/api/status``, readiness, gauges.

Law of this file: reads, never changes; everything it needs is on the loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from ingester import __version__
from ingester.buffer import TableBuffer
from ingester.config.settings import Settings
from ingester.daemon.assembly import Runtime
from ingester.errors import kind_of
from ingester.observability.gauges import Gauges
from ingester.observability.logs import Problem
from ingester.observability.status import (
    Admission,
    Buffered,
    Identity,
    LogStatus,
    Memory,
    OriginStatus,
    Persisted,
    PersistStatus,
    RateSpans,
    Reason,
    Status,
    StreamStatus,
    TableStatus,
)
from ingester.server.http.app import StatusSource


class StatusSwitch:
    """What HTTP shows: first the start, then the running daemon."""

    def __init__(self, current: StatusSource) -> None:
        self.current = current

    @property
    def registry(self) -> CollectorRegistry:
        """See :class:`ingester.server.http.app.StatusSource`."""
        return self.current.registry

    def live(self) -> bool:
        """See :class:`ingester.server.http.app.StatusSource`."""
        return self.current.live()

    def readiness(self, for_write: bool) -> list[str]:
        """See :class:`ingester.server.http.app.StatusSource`."""
        return self.current.readiness(for_write)

    def status(self) -> Status:
        """See :class:`ingester.server.http.app.StatusSource`."""
        return self.current.status()


class StartingStatus:
    """A :class:`ingester.server.http.app.StatusSource` until there is an epoch."""

    def __init__(self, settings: Settings, problems: Callable[[], list[Problem]]) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._problems = problems
        self._started = time.time()

    def live(self) -> bool:
        """A daemon that waits for its store is live."""
        return True

    def readiness(self, for_write: bool) -> list[str]:
        """Not yet."""
        return ["starting"]

    def status(self) -> Status:
        """An identity without an epoch, and the problems so far."""
        memory = self._settings.memory
        return Status(
            identity=Identity(
                ingester_id=self._settings.id,
                incarnation="",
                epoch=0,
                version=__version__,
                pid=os.getpid(),
                started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
                uptime_s=round(time.time() - self._started, 3),
                state="starting",
                flight="",
                http="",
                store=self._settings.store_url,
            ),
            admission=Admission(
                accepts_writes=False,
                reasons=[Reason(code="stopping", message="the daemon is starting")],
                memory=Memory(
                    used_bytes=0,
                    limit_bytes=memory.limit,
                    low_bytes=memory.low,
                    high_bytes=memory.high,
                ),
            ),
            rates=RateSpans(),
            tables=[],
            persist=PersistStatus(),
            log=LogStatus(),
            origins=[],
            streams=StreamStatus(),
            errors=self._problems(),
        )


class Reporter:
    """A :class:`ingester.server.http.app.StatusSource` over one runtime."""

    def __init__(self, runtime: Runtime, problems: Callable[[], list[Problem]]) -> None:
        self._runtime = runtime
        self._problems = problems
        runtime.metrics.watch(self.levels)

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of this daemon, with everything that is acknowledged now. On the loop."""
        self._runtime.wal.catch_up()
        return self._runtime.registry

    def live(self) -> bool:
        """Whether the daemon still works."""
        return self._runtime.state != "failed"

    def readiness(self, for_write: bool) -> list[str]:
        """Why the daemon does not serve; empty when it does."""
        state = self._runtime.state
        if state != "ready":
            return [state]
        if not for_write:
            return []
        return [f"{kind_of(error).code}: {error.message}" for error in self._runtime.gate.reasons()]

    def status(self) -> Status:
        """Everything, at this moment."""
        runtime = self._runtime
        runtime.wal.catch_up()
        return Status(
            identity=self._identity(),
            admission=self._admission(),
            rates=runtime.rates.spans(),
            tables=[_table(table) for _, table in sorted(runtime.tree.tables.items())],
            persist=self._persist(),
            log=self._log(),
            origins=[OriginStatus(**facts._asdict()) for facts in runtime.known_origins.listed()],
            streams=self._streams(),
            clean_up=runtime.cleaning.statistics,
            errors=self._problems(),
        )

    def levels(self) -> Gauges:
        """The gauges."""
        runtime, ledger = self._runtime, self._runtime.ledger
        tables = runtime.tree.tables.values()
        queue, statistics = runtime.persister.queue, runtime.wal.statistics()
        aside = runtime.result_spill
        return Gauges(
            memory_by_kind_bytes=ledger.by_kind(),
            memory_limit_bytes=ledger.watermarks.limit,
            memory_low_bytes=ledger.watermarks.low,
            memory_high_bytes=ledger.watermarks.high,
            buffered_rows=sum(table.rows for table in tables),
            buffered_bytes=sum(table.nbytes for table in tables),
            buffered_partitions=sum(len(table.partitions) for table in tables),
            persist_queued_jobs=queue.queued_jobs,
            persist_queued_bytes=runtime.persister.queued_bytes,
            persist_active_jobs=queue.active,
            log_segments=statistics.segments,
            log_bytes=statistics.bytes,
            log_pending_operations=statistics.pending,
            streams_open=runtime.queries.open_streams,
            streams_stalled=runtime.queries.stalled_streams,
            answer_files=aside.files,
            answer_file_bytes=aside.file_bytes,
            ready=int(runtime.state == "ready"),
            accepts_writes=int(runtime.state == "ready" and not runtime.gate.reasons()),
        )

    def _identity(self) -> Identity:
        runtime = self._runtime
        return Identity(
            ingester_id=runtime.writer.ingester_id,
            incarnation=runtime.writer.incarnation,
            epoch=runtime.writer.epoch,
            version=__version__,
            pid=os.getpid(),
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(runtime.started_at)),
            uptime_s=round(time.monotonic() - runtime.started_monotonic, 3),
            state=runtime.state,
            flight=runtime.flight_url,
            http=runtime.http_url,
            store=runtime.store.url,
        )

    def _admission(self) -> Admission:
        ledger = self._runtime.ledger
        reasons = [
            Reason(
                code=kind_of(error).code, message=error.message, retry_after_s=error.retry_after_s
            )
            for error in self._runtime.gate.reasons()
        ]
        return Admission(
            accepts_writes=not reasons and self._runtime.state == "ready",
            reasons=reasons,
            memory=Memory(
                used_bytes=ledger.used,
                limit_bytes=ledger.watermarks.limit,
                low_bytes=ledger.watermarks.low,
                high_bytes=ledger.watermarks.high,
                by_kind=ledger.by_kind(),
            ),
        )

    def _persist(self) -> PersistStatus:
        runtime, queue = self._runtime, self._runtime.persister.queue
        rows, nbytes, files = runtime.counting.persisted_totals
        return PersistStatus(
            queued_jobs=queue.queued_jobs,
            queued_bytes=runtime.persister.queued_bytes,
            active=queue.active,
            persisted=Persisted(rows=rows, bytes=nbytes, files=files),
            failed_attempts=runtime.counting.failed_attempts,
            last=runtime.counting.last_persists,
        )

    def _streams(self) -> StreamStatus:
        queries, aside = self._runtime.queries, self._runtime.result_spill
        return StreamStatus(
            open=queries.open_streams,
            stalled=queries.stalled_streams,
            files=aside.files,
            file_bytes=aside.file_bytes,
        )

    def _log(self) -> LogStatus:
        statistics = self._runtime.wal.statistics()
        return LogStatus(
            segments=statistics.segments,
            bytes=statistics.bytes,
            open_segment=statistics.open_segment,
            syncs=statistics.syncs,
            last_sync_s=statistics.last_sync_s,
            pending=statistics.pending,
        )


def _table(table: TableBuffer) -> TableStatus:
    opened = min((handle.opened_at for handle in table.handles()), default=None)
    return TableStatus(
        namespace=table.namespace,
        table=table.name,
        manifest_version=table.state.version,
        buffered=Buffered(rows=table.rows, bytes=table.nbytes, partitions=len(table.partitions)),
        persisted=Persisted(
            rows=table.state.rows, bytes=table.state.bytes, files=table.state.file_count
        ),
        oldest_buffered_s=None if opened is None else round(time.monotonic() - opened, 3),
    )
