"""Requests for a new copy of tables: at a start, or to a replicator that is already running."""

from __future__ import annotations

from ingester.client import Client
from ingester.postgres.catalog import read_server
from ingester.postgres.connection import connect
from ingester.postgres.options import Options
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import find_slot
from ingester.postgres.starting import default_origin
from ingester.postgres.states import ReplicaState
from ingester.postgres.tables import Tables


def order_resyncs(tables: Tables, options: Options) -> list[str]:
    """Order the copies that the options request; return names that no table here has."""
    unknown = set(options.resync)
    for target, state in list(tables.have.items()):
        names = _names(target, state)
        if options.resync_all or names & options.resync:
            tables.order(target, "a new copy was requested", state.facts.oid)
        unknown -= names
    return sorted(unknown)


def request_resync(options: Options, client: Client) -> str:
    """Request new copies from the replicator that reads from the slot.

    Returns:
        A line that says so; empty if no replicator is running.

    Raises:
        SourceFailed: no such table here.
    """
    connection = connect(options.dsn)
    try:
        slot = find_slot(connection, options.slot)
        if slot is None or slot.active_pid is None:
            return ""
        origin = options.origin or default_origin(options, read_server(connection))
    finally:
        connection.close()
    tables = Tables(client, options.namespace, origin)
    tables.load()
    targets = {
        name: target for target, state in tables.have.items() for name in _names(target, state)
    }
    unknown = sorted(options.resync - targets.keys())
    if unknown:
        raise SourceFailed(f"table {unknown[0]!r} has no copy here that could be made again")
    requested = sorted({targets[name] for name in options.resync})
    tables.request(requested)
    return f"requested a new copy of {', '.join(requested)} from the running replicator"


def _names(target: str, state: ReplicaState) -> set[str]:
    return {target, state.facts.full_name, state.facts.name}
