"""The facts: the state of the daemon at one moment, which everything that it publishes is made of.

    the parts' ``statistics()`` ─▶ Facts ─┬▶ ``alarms``   what an operator has to act on
                                          ├▶ ``gauges``   /metrics
                                          ├▶ ``history``  /api/history
                                          ├▶ ``status``   /api/status, with the lists of tables etc.
                                          └▶ readiness    /health/ready

:class:`ingester.daemon.status.StatusPublisher` collects them, so that an alarm, a metric and the
page cannot disagree. Collecting them costs the same whatever the daemon holds: lists that grow with
tables, origins or namespaces are not among them. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ingester.observability.status import (
    Admission,
    AdoptionStatus,
    CleanUpStatus,
    CompactionStatus,
    DiskStatus,
    DrainStatus,
    Identity,
    LogStatus,
    PersistStatus,
    PublishStatus,
    PushReading,
    RateSpans,
    ReplicationStatus,
    SecurityStatus,
    SeenPush,
    SqlStatus,
    StoreLogStatus,
    StoreState,
    StreamStatus,
    TransformStatus,
)


class OverdueRow(NamedTuple):
    """The age of an unflushed row, and the age that is allowed for rows of its table."""

    age_s: float
    allowed_s: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the daemon. Without an epoch, most parts have their defaults."""

    identity: Identity
    admission: Admission
    store: StoreState = StoreState()
    disk: DiskStatus = DiskStatus()
    security: SecurityStatus = SecurityStatus()
    drain: DrainStatus = DrainStatus()
    adoptions: tuple[AdoptionStatus, ...] = ()
    superseded: bool = False
    """Whether another process has claimed this ingester's id, even if it has not fenced it yet."""
    stalled_s: float = 0.0
    """The longest time within the last minute for which the event loop was blocked."""

    rates: RateSpans = RateSpans()
    log: LogStatus = LogStatus()
    log_writing_s: float = 0.0
    """How long the log's disk has been writing the current group."""
    segment_bytes: int = 0
    """Size of a log segment; the log needs room for two."""
    store_log: StoreLogStatus = StoreLogStatus()

    persist: PersistStatus = PersistStatus()
    buffered_bytes: int = 0
    """Memory of unflushed rows."""
    frozen_bytes: int = 0
    """Memory of frozen buffers waiting for their files."""
    failed_persists: int = 0
    """Failed flush attempts within the last minute."""
    unencodable: int = 0
    """The number of buffers that cannot be encoded."""
    oldest_unpersisted_s: float | None = None
    """Age of the oldest unflushed row; None if there is none."""
    overdue: OverdueRow | None = None
    """A row that should have been in a file."""
    clean_up: CleanUpStatus = CleanUpStatus()
    publishing: PublishStatus = PublishStatus()
    compaction: CompactionStatus = CompactionStatus()
    refresh_lag_s: float = 0.0
    """How long a requested table could not be looked up in the store."""

    streams: StreamStatus = StreamStatus()
    sql: SqlStatus = SqlStatus()
    transform: TransformStatus = TransformStatus()
    replications: tuple[ReplicationStatus, ...] = ()
    pushes: tuple[SeenPush, ...] = ()
    push_reading: PushReading = PushReading()

    @property
    def starting(self) -> bool:
        """Whether no calls are accepted yet."""
        return self.identity.state == "starting"

    @property
    def refusals(self) -> frozenset[str]:
        """The codes with which a batch of average size would be refused."""
        return frozenset(reason.code for reason in self.admission.reasons)
