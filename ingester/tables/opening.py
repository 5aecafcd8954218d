"""Opens the room: the buffers, the catalogue of tables, and the known origins."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ingester.buffer import BufferTree, FreezeLimits, TreeHooks
from ingester.config.settings import Settings
from ingester.memory.ledger import MemoryLedger
from ingester.observability.metrics import Metrics
from ingester.origins.registry import Origins
from ingester.quotas.namespaces import Namespaces
from ingester.store_log.opening import StoreLogParts
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from ingester.tables.ddl import TableRules
from ingester.tables.origin_lookup import KnownOrigins
from ingester.tables.origin_takeover import OriginTakeover
from persist.manifest import WriterIdentity
from persist.store import ObjectStore
from wal import Log


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts with which every room is opened."""

    settings: Settings
    store: ObjectStore
    writer: WriterIdentity
    wal: Log
    ledger: MemoryLedger
    namespaces: Namespaces
    metrics: Metrics
    store_log: StoreLogParts


@dataclass(frozen=True, slots=True)
class TableParts:
    """The parts that other rooms use."""

    origins: Origins
    tree: BufferTree
    catalog: Catalog
    takeover: OriginTakeover
    known_origins: KnownOrigins


@dataclass(frozen=True, slots=True)
class TableHooks:
    """Functions of other rooms that buffers and tables call."""

    tree: TreeHooks
    commits: CommitHooks
    begin_segment: Callable[[], Awaitable[None]]
    """Begins a log segment, which repeats what is applied of each origin."""
    flight_url: Callable[[], str]
    """Returns the address at which clients reach this daemon."""


def open_tables(shared: Shared, hooks: TableHooks) -> TableParts:
    """Return the parts of a daemon without tables. On the loop."""
    settings, writer, ledger = shared.settings, shared.writer, shared.ledger
    origins = Origins(time.monotonic, settings.limits.origins)
    tree = BufferTree(
        ledger,
        origins,
        FreezeLimits(
            settings.persist.max_partition_bytes,
            settings.replication.max_messages,
            settings.limits.checkpoints,
        ),
        hooks.tree,
        ingester_id=writer.ingester_id,
        namespaces=shared.namespaces,
    )
    ledger.gauge("checkpoints", lambda: tree.checkpoints.nbytes)
    commits = Commits(
        shared.store, tree, writer, hooks.commits, expire_after_s=settings.origins.expire_after
    )
    rules = TableRules(settings.auto_create, settings.limits, hooks.flight_url)
    catalog = Catalog(commits, tree, writer, rules)
    return TableParts(
        origins,
        tree,
        catalog,
        OriginTakeover(commits, origins, writer, hooks.begin_segment),
        KnownOrigins(catalog, origins),
    )
