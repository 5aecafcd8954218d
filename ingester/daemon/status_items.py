"""The long lists of the status: tables, origins, followers, replications, namespaces.

A page costs one pass over the keys of its list, and only its own items are made. Loop only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ingester.buffer import TableBuffer
from ingester.daemon.assembly import Runtime
from ingester.observability.status import (
    CheckpointStatus,
    FollowerStatus,
    NamespaceQuotas,
    NamespaceStatus,
    OriginStatus,
    ReplicationStatus,
    TableStatus,
)
from ingester.observability.status_lists import TOP
from ingester.server.auth.views import Sees, seen


def table_status(runtime: Runtime, table: TableBuffer) -> TableStatus:
    """Return the status of one table, with its checkpoints."""
    totals = runtime.tables.tree.checkpoints.statistics(table.key)
    checkpoints = msgspec.convert(totals, CheckpointStatus, from_attributes=True)
    return msgspec.structs.replace(table.statistics(), checkpoints=checkpoints)


def busiest(tables: Iterable[TableBuffer]) -> list[TableBuffer]:
    """Return the tables with the most buffered bytes, equal ones by name."""
    return heapq.nsmallest(TOP, tables, key=lambda table: (-table.nbytes, table.key))


def followers_of(runtime: Runtime) -> Iterator[FollowerStatus]:
    """Yield the followers of all tables."""
    for (namespace, table), each in runtime.query.live.followers.known():
        yield FollowerStatus(
            namespace=namespace,
            table=table,
            name=each.name,
            alive=each.alive,
            table_version=each.table_version,
            prepared=list(each.prepared),
        )


def namespaces_of(runtime: Runtime) -> Iterator[NamespaceStatus]:
    """Yield the namespaces that use something or were refused something."""
    namespaces, places = runtime.namespaces, runtime.query.queries.places
    share = namespaces.share_of(runtime.ledger.watermarks.high)
    for use in namespaces.known():
        if use.idle and not use.refused:
            continue  # a caller has named it; it may not exist
        yield NamespaceStatus(
            namespace=use.name,
            bytes=use.bytes,
            queued_bytes=use.queued_bytes,
            partitions=use.partitions,
            tables=use.tables,
            writers=use.writers,
            answers=places.of(use.name),
            refused=use.refused,
            over_share=use.bytes > share,
            quota=msgspec.convert(use.quota, NamespaceQuotas, from_attributes=True),
        )


def _keyed_tables(runtime: Runtime, sees: Sees | None) -> Iterator[tuple[str, TableBuffer]]:
    return (("/".join(each.key), each) for each in seen(runtime.tables.tree.tables.values(), sees))


def _keyed_origins(runtime: Runtime, sees: Sees | None) -> Iterator[tuple[str, OriginStatus]]:
    return ((each.origin, each) for each in runtime.tables.known_origins.statistics(sees))


def _keyed_followers(runtime: Runtime, sees: Sees | None) -> Iterator[tuple[str, FollowerStatus]]:
    for each in seen(followers_of(runtime), sees):
        yield f"{each.namespace}/{each.table}/{each.name}", each


def _keyed_replications(
    runtime: Runtime, sees: Sees | None
) -> Iterator[tuple[str, ReplicationStatus]]:
    known = seen(runtime.replication.reports.known(), sees)
    return ((f"{each.namespace}/{each.origin}", each) for each in known)


def _keyed_namespaces(runtime: Runtime, sees: Sees | None) -> Iterator[tuple[str, NamespaceStatus]]:
    return ((each.namespace, each) for each in seen(namespaces_of(runtime), sees))


def _as_it_is(_: Runtime, each: object) -> object:
    return each


_Keyed = Callable[[Runtime, Sees | None], Iterable[tuple[str, Any]]]
LISTS: dict[str, tuple[_Keyed, Callable[[Runtime, Any], object]]] = {
    "tables": (_keyed_tables, table_status),
    "origins": (_keyed_origins, _as_it_is),
    "followers": (_keyed_followers, _as_it_is),
    "replications": (_keyed_replications, _as_it_is),
    "namespaces": (_keyed_namespaces, _as_it_is),
}
"""Each list: its entries by key, and what makes the item of an entry."""
