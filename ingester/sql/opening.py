"""Opens the room: the engine of a daemon."""

from __future__ import annotations

from ingester.query.queries import Queries
from ingester.sql.engine import SqlEngine, SqlParts
from ingester.sql.peers import Peers
from ingester.sql.sources import SnapshotReader
from ingester.sql.tables import CallLoop, Here, TableFinder
from ingester.tables.opening import Shared, TableParts

_LOCAL = "file://"


def open_sql(
    shared: Shared, tables: TableParts, queries: Queries, call: CallLoop, store_id: str
) -> SqlEngine:
    """Return the engine; it starts no process before the first query.

    Args:
        call: runs a coroutine on the loop, after everything acknowledged is applied.
        store_id: the id in the store's mark.
    """
    settings, url = shared.settings, shared.store.url
    root = url.removeprefix(_LOCAL) if url.startswith(_LOCAL) else None
    here = Here(shared.writer.ingester_id, tables.tree.upto, call)
    reader = SnapshotReader(queries, root)
    folder = settings.data_dir.absolute() / "sql"
    peers = Peers(settings.sql, settings.tls, store_id, folder)
    parts = SqlParts(
        here.ingester_id,
        TableFinder(here, tables.catalog, queries, reader, peers),
        queries.places,
        shared.namespaces.request,
        str(folder),
        tuple(f"{each}/" for each in (root, folder) if each),
        shared.metrics.sql_ended,
    )
    engine = SqlEngine(settings.sql, settings.query.client_timeout, parts)
    shared.ledger.gauge("sql", engine.held_bytes)
    return engine
