"""Requests for a new copy of a table, sent to a replicator that is already running."""

from __future__ import annotations

from ingester.client import Client
from ingester.postgres.catalog import read_server
from ingester.postgres.connection import connect
from ingester.postgres.options import Options
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import find_slot
from ingester.postgres.starting import default_origin
from ingester.postgres.tables import Tables


def asked_another(options: Options, client: Client) -> str:
    """Ask whoever reads from the slot for new copies; empty where nobody does.

    Returns:
        A line that says so.

    Raises:
        SourceFailed: there is no such table here.
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
        name: target
        for target, state in tables.have.items()
        for name in (target, state.facts.full_name, state.facts.name)
    }
    unknown = sorted(options.resync - targets.keys())
    if unknown:
        raise SourceFailed(f"{unknown[0]!r} has no copy here: there is none to make anew")
    asked = sorted({targets[name] for name in options.resync})
    tables.request(asked)
    return f"asked the replicator that runs to copy {', '.join(asked)} anew"
