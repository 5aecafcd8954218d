"""Opens the room: queries, their caches and files, and the calls of followers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ingester.buffer import BufferHandle
from ingester.observability.metrics import Metrics
from ingester.query.live_feed import LiveFeed
from ingester.query.live_groups import LogPast
from ingester.query.live_tail import LIVE_BYTES, LiveTails
from ingester.query.queries import Queries, QueryHooks, QueryLimits
from ingester.query.row_group_cache import CACHE_BYTES, RowGroupCache
from ingester.query.spill import ResultSpill, spill_handle
from ingester.query.ticket import FilterLimits
from ingester.tables.opening import Shared, TableParts

SETTLE_S = 0.01
"""How long a query's thread waits for acknowledged rows to be applied before it asks the loop."""
CACHE_PART = 16
"""The caches have at most this fraction of ``memory.limit`` each."""


@dataclass(frozen=True, slots=True)
class QueryParts:
    """The parts that other rooms use."""

    row_groups: RowGroupCache
    queries: Queries
    live_tails: LiveTails
    live: LiveFeed
    metrics: Metrics
    spill_folder: Path

    @property
    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The functions that run for as long as the daemon."""
        return self.queries.run, self.live.run

    def shrink_caches(self) -> None:
        """Drop cached rows: memory is short."""
        self.row_groups.shrink()
        self.live_tails.shrink()

    def spill(self, handle: BufferHandle) -> None:
        """Write a buffer that readers still need to local disk. Runs in a thread."""
        self.metrics.spilled(spill_handle(self.spill_folder, handle))


def open_query(shared: Shared, tables: TableParts, past: LogPast) -> QueryParts:
    """Return the parts of a daemon without queries. On the loop.

    Args:
        past: the sequences that the log has of earlier epochs.
    """
    settings, metrics, wal = shared.settings, shared.metrics, shared.wal
    spill_folder, cache_bytes = settings.data_dir / "spill", settings.memory.limit // CACHE_PART
    row_groups = RowGroupCache(
        shared.store,
        cache_bytes=min(CACHE_BYTES, cache_bytes),
        result_spill=ResultSpill(spill_folder, metrics.result_spilled),
    )
    query = settings.query
    limits = QueryLimits(
        max_streams=query.max_streams,
        client_timeout_s=query.client_timeout,
        tail_retain_s=query.tail_retain,
        refresh_s=settings.manifest.refresh,
        max_followers=query.max_followers,
        filters=FilterLimits(query.max_filter_terms, query.max_filter_bytes),
        max_cpu_s=query.max_cpu,
    )
    hooks = QueryHooks(
        lambda: wal.wait_settled(SETTLE_S), metrics.query_opened, metrics.stream_timed_out
    )
    queries = Queries(tables.catalog, tables.tree, limits, row_groups, hooks)
    live_tails = LiveTails(
        tables.tree,
        past,
        retain_s=query.tail_retain,
        retain_bytes=min(LIVE_BYTES, cache_bytes),
    )
    live = LiveFeed(tables.catalog, queries, live_tails, refresh_s=settings.manifest.refresh)
    ledger = shared.ledger
    ledger.gauge("row_groups", lambda: row_groups.nbytes)
    ledger.gauge("answers", lambda: queries.answer_bytes() + live_tails.nbytes)
    return QueryParts(row_groups, queries, live_tails, live, metrics, spill_folder)
