"""Who a statement waits for: transactions that run, or are prepared and forgotten.

    pg_blocking_pids, pg_locks ──▶ sessions, prepared transactions ──▶ a text for each

Law of this file: no text of a statement is told; it may have anything in it.
"""

from __future__ import annotations

from typing import Any

from ingester.postgres.connection import ask

_SHOWN = 10


def blockers_of(connection: Any, pid: int) -> tuple[str, ...]:
    """What the server's process ``pid`` waits for, as another connection sees it.

    Raises:
        SourceFailed, psycopg2.OperationalError
    """
    sessions = ask(connection, f"{_SESSIONS} WHERE pid = ANY (pg_blocking_pids(%s))", pid)
    prepared = ask(
        connection,
        f"{_PREPARED} WHERE transaction IN (SELECT transactionid FROM pg_locks"
        " WHERE pid = %s AND NOT granted)",
        pid,
    )
    return _told(sessions, prepared)


def blockers_of_tables(connection: Any, oids: set[int]) -> tuple[str, ...]:
    """Who has these tables for itself, or waits to have them.

    Raises:
        SourceFailed, psycopg2.OperationalError
    """
    locks = (
        "FROM pg_locks l WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.relation = ANY (%s::oid[])"
    )
    wanted = sorted(oids)
    sessions = ask(connection, f"{_SESSIONS} WHERE pid IN (SELECT l.pid {locks})", wanted)
    # A prepared transaction's locks have the number of its virtual one, which ends in it.
    prepared = ask(
        connection,
        f"{_PREPARED} WHERE EXISTS (SELECT {locks} AND l.pid IS NULL"
        " AND l.virtualtransaction LIKE '%%/' || transaction)",
        wanted,
    )
    return _told(sessions, prepared)


_SESSIONS = (
    "SELECT pid, usename::text, application_name, state,"
    " to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS') FROM pg_stat_activity"
)
_PREPARED = (
    "SELECT gid, owner::text, to_char(prepared, 'YYYY-MM-DD HH24:MI:SS') FROM pg_prepared_xacts"
)


def _told(sessions: list[tuple[Any, ...]], prepared: list[tuple[Any, ...]]) -> tuple[str, ...]:
    found = []
    for pid, role, program, state, since in sessions[:_SHOWN]:
        what = f"pid {pid}, role {role}"
        what += f", program {program!r}" if program else ""
        what += f", {state}" if state else ""
        what += f", in a transaction since {since} UTC" if since else ""
        found.append(what)
    for gid, owner, since in prepared[:_SHOWN]:
        what = f"prepared transaction {gid!r} of {owner}, since {since} UTC"
        found.append(f"{what}: COMMIT PREPARED or ROLLBACK PREPARED ends it")
    return tuple(found)
