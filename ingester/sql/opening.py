"""Opens the room: the engine of a daemon."""

from __future__ import annotations

from ingester.query.queries import Queries
from ingester.sql.engine import CallLoop, SqlEngine, SqlParts
from ingester.sql.tables import TableFinder
from ingester.tables.opening import Shared, TableParts

_LOCAL = "file://"


def open_sql(shared: Shared, tables: TableParts, queries: Queries, call: CallLoop) -> SqlEngine:
    """Return the engine; it starts no process before the first query.

    Args:
        call: runs a coroutine on the loop, after everything acknowledged is applied.
    """
    settings, url = shared.settings, shared.store.url
    root = url.removeprefix(_LOCAL) if url.startswith(_LOCAL) else None
    finder = TableFinder(tables.catalog, queries, lambda: tables.tree.applied_seq, root)
    folder = str(settings.data_dir.absolute() / "sql")
    secret = f"{root}/" if root else ""
    parts = SqlParts(finder, queries, call, folder, secret, shared.metrics.sql_ended)
    return SqlEngine(settings.sql, settings.query.client_timeout, parts)
