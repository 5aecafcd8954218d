"""The parts of a daemon that protocols call.

The daemon makes the struct (:mod:`ingester.daemon.assembly`), so that no protocol imports it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingester.buffer import TableBuffer
from ingester.copies.copies import Copies
from ingester.observability.log_levels import LogLevels
from ingester.observability.metrics import Metrics
from ingester.observability.status import DaemonStatus, DrainStatus
from ingester.observability.status_lists import PageRequest, StatusPage
from ingester.publishing import Publishing
from ingester.query.live_feed import LiveFeed
from ingester.query.queries import Queries
from ingester.query.stream import AnswerStream
from ingester.replication.reports import ReplicationReports
from ingester.replication.service import Replication
from ingester.server.auth.access import Access
from ingester.server.auth.rights import Sees
from ingester.sql.engine import SqlEngine
from ingester.tables.catalog import Catalog
from ingester.tables.origin_lookup import KnownOrigins
from ingester.write.checkpoints import CheckpointCalls
from ingester.write.streams import Writes
from persist.manifest import WriterIdentity

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import Traces


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one daemon that protocols call."""

    writer: WriterIdentity
    store_id: str
    """The id in the store's mark."""
    catalog: Catalog
    writes: Writes
    replication: Replication
    reports: ReplicationReports
    queries: Queries
    live: LiveFeed
    sql: SqlEngine
    known_origins: KnownOrigins
    checkpoints: CheckpointCalls
    copies: Copies
    publishing: Publishing
    metrics: Metrics
    log_levels: LogLevels
    access: Access
    drain: Callable[[bool, float], Awaitable[DrainStatus]]
    """Begins a drain, or takes it back; takes which of them, and the seconds to wait for its end.
    """
    traces: Traces | None
    """Everything that is traced; None where nothing is."""
    persist: Callable[[str | None, str | None, float], Awaitable[list[TableBuffer]]]
    """Commits all that was acknowledged; takes namespace, table and a timeout in seconds."""
    status: Callable[[Sees | None], DaemonStatus]
    """Tells of everything, or of the namespaces that a caller sees."""
    status_page: Callable[[PageRequest, Sees | None], StatusPage]
    answered: Callable[[AnswerStream], None]
    """Called for each query whose answer was sent completely."""
    freed: Callable[[int], None]
    """Called with the bytes of messages that were received and refused. On the loop."""
