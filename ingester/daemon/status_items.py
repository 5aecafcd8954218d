"""The long lists of the status, and the part of a status that a caller sees.

The lists are tables, origins, followers, replications and namespaces. A page costs one pass over
the keys of its list, and only its own items are made. For a caller who does not see all namespaces,
lists are cut to its own, and texts that may name any namespace (the log's problems, unreadable
paths) are left out. Totals stay. Loop only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ingester.buffer import TableBuffer
from ingester.daemon.assembly import Runtime
from ingester.observability.status import (
    CheckpointStatus,
    DaemonStatus,
    FollowerStatus,
    NamespaceQuotas,
    NamespaceStatus,
    OriginStatus,
    ReplicationStatus,
    StoreLogStatus,
    TableStatus,
    TokenStatus,
)
from ingester.observability.status_lists import TOP
from ingester.server.auth.rights import Sees

_UNTOLD = "told to those who have '*'"


class _Placed(Protocol):
    @property
    def namespace(self) -> str: ...


P = TypeVar("P", bound=_Placed)


def seen(placed: Iterable[P], sees: Sees | None) -> list[P]:
    """Return the items in namespaces that the caller sees; None sees all."""
    return [each for each in placed if sees is None or sees(each.namespace)]


def status_seen(status: DaemonStatus, sees: Sees | None) -> DaemonStatus:
    """Return the part of a status that its caller sees; None sees everything.

    Tables, origins, followers, replications and namespaces have been cut by :func:`seen` before.
    """
    if sees is None:
        return status
    return replace(
        status,
        # An error may name an object, and that its table.
        store_state=replace(status.store_state, last_error=None),
        store_log=shown_store_log(status.store_log, sees),
        drain=replace(status.drain, problem=None),
        adoptions=[replace(each, problem=None) for each in status.adoptions],
        persist=replace(status.persist, last=seen(status.persist.last, sees)),
        pushes=seen(status.pushes, sees),
        push_reading=replace(
            status.push_reading,
            failure=status.push_reading.failure and _UNTOLD,
            unreadable=[],
        ),
        transform=replace(status.transform, hung_calls={}),
        security=replace(status.security, callers=TokenStatus()),
        errors=[],
    )


def shown_store_log(store_log: StoreLogStatus, sees: Sees | None) -> StoreLogStatus:
    """Return it with the tables that have lost the most, of those that the caller sees."""
    lost = heapq.nlargest(TOP, seen(store_log.lost, sees), key=lambda each: each.operations)
    last_error = store_log.last_error if sees is None else None
    return replace(store_log, lost=lost, last_error=last_error)


def table_status(runtime: Runtime, table: TableBuffer) -> TableStatus:
    """Return the status of one table, with its checkpoints and where it is published."""
    totals = runtime.tables.tree.checkpoints.statistics(table.key)
    checkpoints = msgspec.convert(totals, CheckpointStatus, from_attributes=True)
    published = runtime.publishing.of_table(table.key)
    ack = runtime.write.writes.levels.level(table.key, table.definition.ack)
    return replace(table.statistics(), checkpoints=checkpoints, published=published, ack=ack)


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
