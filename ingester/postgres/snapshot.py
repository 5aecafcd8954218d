"""A snapshot of the source at a known position of its log, from which tables are copied.

    temporary slot ──▶ position S and snapshot ──▶ slot dropped ──▶ facts ──▶ locked ──▶ COPY …
                                                                     │ unchanged now? │
                                                                     └▶ ChangedMeanwhile

A transaction whose commit ends at or before S is in the snapshot; every other one is in the stream
of any slot created before. A table that is rewritten or truncated after S looks empty in the
snapshot. So a table is read only under a lock, and only if its facts are still those of the
snapshot (``tests/postgres/test_snapshot.py``). While a slot's creation or a lock waits, the
blocking sessions are reported, and statements of the application never queue behind our lock for
long.

Source: PostgreSQL's documentation, "Streaming Replication Protocol", CREATE_REPLICATION_SLOT.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from ingester.postgres.catalog import read_tables
from ingester.postgres.connection import StatementThread, Stopped, ask, connect, source_errors
from ingester.postgres.facts import TableFacts
from ingester.postgres.states import History
from ingester.postgres.timelines import read_history

_SHOWN = 10
_SESSIONS = (
    "SELECT pid, usename::text, application_name, state,"
    " to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS') FROM pg_stat_activity"
)
_PREPARED = (
    "SELECT gid, owner::text, to_char(prepared, 'YYYY-MM-DD HH24:MI:SS') FROM pg_prepared_xacts"
)
LOCK_TIMEOUT_MS = 300
"""The longest time that statements of the application queue behind our lock request."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LOOK_EVERY_S = 1.0
_STOP_WITHIN_S = 0.1
_NAME_BYTES = 63
T = TypeVar("T")
_COMPARED = ("schema", "name", "kind", "filenode", "columns", "leaves", "key", "row_security")


def blockers_of(connection: Any, pid: int) -> tuple[str, ...]:
    """The sessions and prepared transactions that block the server process ``pid``."""
    sessions = ask(connection, f"{_SESSIONS} WHERE pid = ANY (pg_blocking_pids(%s))", pid)
    prepared = ask(
        connection,
        f"{_PREPARED} WHERE transaction IN (SELECT transactionid FROM pg_locks"
        " WHERE pid = %s AND NOT granted)",
        pid,
    )
    return _described(sessions, prepared)


def blockers_of_tables(connection: Any, oids: set[int]) -> tuple[str, ...]:
    """Sessions that hold or await an exclusive lock on these tables."""
    locks = (
        "FROM pg_locks l WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.relation = ANY (%s::oid[])"
    )
    wanted = sorted(oids)
    sessions = ask(connection, f"{_SESSIONS} WHERE pid IN (SELECT l.pid {locks})", wanted)
    # The locks of a prepared transaction have a virtual transaction id that ends in its id.
    prepared = ask(
        connection,
        f"{_PREPARED} WHERE EXISTS (SELECT {locks} AND l.pid IS NULL"
        " AND l.virtualtransaction LIKE '%%/' || transaction)",
        wanted,
    )
    return _described(sessions, prepared)


def _described(sessions: list[tuple[Any, ...]], prepared: list[tuple[Any, ...]]) -> tuple[str, ...]:
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


class ChangedMeanwhile(Exception):
    """A table differs from the snapshot: take another one."""


class SourceSnapshot:
    """The source's tables at ``lsn``. Created by :meth:`take`; one thread at a time."""

    def __init__(
        self,
        lsn: int,
        history: History,
        connection: Any,
        beside: Any,
        stopped: Callable[[], bool],
        waiting: Callable[[str], None],
    ) -> None:
        """Take a connection with the snapshot's transaction, and one that sees the present."""
        self.lsn = lsn
        """Commits that end at or before it are in the snapshot, all others are not."""
        self.history = history
        """The timelines of the log that ``lsn`` is a position of."""
        self.connection = connection
        self.stopped = stopped
        self._beside = beside
        self._waiting = waiting

    @classmethod
    @contextmanager
    def take(
        cls,
        dsn: str,
        slot_name: str,
        stopped: Callable[[], bool],
        waiting: Callable[[str], None] = lambda text: None,
    ) -> Iterator[SourceSnapshot]:
        """Take a snapshot for the duration of the ``with`` block.

        The server waits for all writing transactions, including prepared ones.

        Args:
            slot_name: prefix of the temporary slot's name; the slot is dropped on return.
            stopped: polled several times a second.
            waiting: called with the blocking sessions, and with "" when the wait is over.

        Raises:
            Stopped: ``stopped`` returned true.
        """
        with contextlib.ExitStack() as closed:
            connection = connect(dsn, replication=True)
            closed.callback(connection.close)
            beside = connect(dsn)
            closed.callback(beside.close)
            history = read_history(connection)
            pid = connection.info.backend_pid
            name = f"{slot_name[: _NAME_BYTES - 12]}_{pid}"
            creation = StatementThread(connection, lambda: _create(connection, name))
            lsn = _watched(
                creation, stopped, lambda: waiting(_blocked_text(blockers_of(beside, pid)))
            )
            waiting("")
            yield cls(lsn, history, connection, beside, stopped, waiting)

    def facts(self, publication: str, oids: list[int] | None = None) -> list[TableFacts]:
        """The facts of the publication's tables in the snapshot."""
        with source_errors():
            return read_tables(self.connection, publication, oids)

    def ask(self, query: Any) -> list[tuple[Any, ...]]:
        """The rows of a query in the snapshot; interruptible."""
        statement = StatementThread(self.connection, lambda: ask(self.connection, query))
        return _watched(statement, self.stopped, lambda: None)

    @contextmanager
    def locked(self, table: TableFacts) -> Iterator[None]:
        """Lock the table for reading, and verify that its facts are unchanged; others can write.

        Raises:
            ChangedMeanwhile: rewritten, truncated, altered, renamed or dropped since.
            Stopped: while another session held the table.
        """
        self._execute("SAVEPOINT unlocked")
        try:
            self._lock(table)
            self._compare(table)
            held = self._held()
            if not _oids(table) <= held.keys():
                raise ChangedMeanwhile(
                    f"table {table.full_name}: the name now belongs to another table"
                )
            yield
            # A schema is renamed without locking its tables, so a name may change between two
            # statements. By now the table that was read is locked.
            others = {oid: name for oid, name in self._held().items() if oid not in held}
            if table.name in others.values():
                raise ChangedMeanwhile(
                    f"table {table.full_name}: the name now belongs to another table"
                )
        finally:
            self._unlock()

    def _lock(self, table: TableFacts) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._try_lock(table):
            self._waiting(_blocked_text(blockers_of_tables(self._beside, _oids(table))))
            _pause(pause_s, self.stopped)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._waiting("")

    def _try_lock(self, table: TableFacts) -> bool:
        import psycopg2.errors
        from psycopg2 import sql

        # Locks the partitions, too.
        only = sql.SQL("" if table.kind == "p" else "ONLY ")
        name = sql.Identifier(table.schema, table.name)
        self._execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        with source_errors(), self.connection.cursor() as cursor:
            try:
                cursor.execute(sql.SQL("LOCK TABLE {}{} IN ACCESS SHARE MODE").format(only, name))
            except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
                cursor.execute("ROLLBACK TO SAVEPOINT unlocked")
                return False
            except (
                psycopg2.errors.UndefinedTable,
                psycopg2.errors.InvalidSchemaName,
                psycopg2.errors.WrongObjectType,
            ) as exc:
                raise ChangedMeanwhile(
                    f"table {table.full_name}: {' '.join(str(exc).split())}"
                ) from exc
            cursor.execute("SET LOCAL lock_timeout = 0")
        return True

    def _unlock(self) -> None:
        """Release the lock, whatever has failed."""
        import psycopg2
        import psycopg2.extensions

        for _ in range(3):
            try:
                self._execute("ROLLBACK TO SAVEPOINT unlocked")
                self._execute("RELEASE SAVEPOINT unlocked")
            except psycopg2.extensions.QueryCanceledError:
                continue  # A late cancel of the previous statement.
            except Exception:
                # The connection is lost; its next use raises.
                self.connection.close()
            return

    def _compare(self, table: TableFacts) -> None:
        """Refuse a table that differs from the snapshot or from the caller's facts."""
        then = self.facts("", [table.oid])
        with source_errors():
            now = read_tables(self._beside, "", [table.oid])
        for other in (then, now):
            if differences := _differences(table, other):
                raise ChangedMeanwhile(f"table {table.full_name} {differences}")

    def _held(self) -> dict[int, str]:
        """The tables locked by the transaction, with their names."""
        found = ask(
            self._beside,
            "SELECT c.oid::bigint, c.relname::text FROM pg_locks l JOIN pg_class c"
            " ON c.oid = l.relation WHERE l.pid = %s AND l.granted AND l.locktype = 'relation'"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND c.relkind NOT IN ('i', 'I', 't')"
            " AND c.relnamespace <> 'pg_catalog'::regnamespace",
            self.connection.info.backend_pid,
        )
        return {int(oid): str(name) for oid, name in found}

    def _execute(self, statement: str) -> None:
        with source_errors(), self.connection.cursor() as cursor:
            cursor.execute(statement)


def _create(connection: Any, slot_name: str) -> int:
    """Start a transaction with the snapshot of a new slot; return the slot's position."""
    from psycopg2 import sql

    slot = sql.Identifier(slot_name)
    create = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput USE_SNAPSHOT")
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(create.format(slot))
        _, lsn, _, _ = cursor.fetchone()
        # The transaction keeps the snapshot; the slot would only hold the log.
        cursor.execute(sql.SQL("DROP_REPLICATION_SLOT {}").format(slot))
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _watched(
    statement: StatementThread[T], stopped: Callable[[], bool], look: Callable[[], None]
) -> T:
    """The result of a statement; calls ``look`` every second meanwhile."""
    look_at = time.monotonic() + LOOK_EVERY_S
    try:
        while not statement.wait(_STOP_WITHIN_S):
            if stopped():
                raise Stopped("stopped while the source was creating a snapshot")
            if time.monotonic() >= look_at:
                look()
                look_at = time.monotonic() + LOOK_EVERY_S
        return statement.result()
    finally:
        statement.interrupt()


def _pause(seconds: float, stopped: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if stopped():
            raise Stopped("stopped while another session held a table's lock")
        time.sleep(min(_STOP_WITHIN_S, left))


def _oids(table: TableFacts) -> set[int]:
    return {table.oid, *(leaf.oid for leaf in table.leaves)}


def _blocked_text(blockers: tuple[str, ...]) -> str:
    return f"the source waits for {'; '.join(blockers)}" if blockers else ""


def _differences(table: TableFacts, found: list[TableFacts]) -> str:
    """Describe the difference of two readings, apart from publication; empty if none."""
    if not found:
        return "was dropped after the snapshot"
    before, after = (_unpublished(each) for each in (table, found[0]))
    names = [name for name in _COMPARED if getattr(before, name) != getattr(after, name)]
    if not names:
        return ""
    what = "rewritten or emptied" if "filenode" in names else "changed"
    return f"was {what} after the snapshot: {', '.join(names)}"


def _unpublished(table: TableFacts) -> TableFacts:
    columns = tuple(msgspec.structs.replace(each, sent=True) for each in table.columns)
    return msgspec.structs.replace(table, columns=columns)
