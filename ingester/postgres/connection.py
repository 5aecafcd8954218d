"""Connections to PostgreSQL: fixed session settings, classified errors, interruptible statements.

    connect ──▶ a plain or a replication connection   ask ──▶ rows   source_errors ──▶ SourceFailed
    StatementThread(connection, work) ── wait ──▶ result ──▶ what work returned or raised
                                      └─ interrupt ──▶ cancelled at the server, thread ended

Settings of the database, the role or the DSN do not change the text of a value, and no message
contains a password (``tests/postgres/test_connection.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ingester.postgres.server_errors import (
    APPLICATION_NAME,
    DIRECT,
    ENCODED,
    NOT_UTF8,
    SourceFailed,
    failure_of,
)

PINNED = {
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Settings by which the server writes values as text, and without time limits.
``row_security = off`` makes the server refuse a query whose rows a policy would filter."""
_PINNED_SINCE = {
    "idle_session_timeout": (140_000, "0"),
    "transaction_timeout": (170_000, "0"),
}
_KEPT_ALIVE = {
    "connect_timeout": "15",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Defaults by which a lost server is noticed within a minute; the DSN may override them."""

_PROBES = 3
_SECRET = ("password", "sslpassword", "passfile")
_SHOWN = ("service", "host", "hostaddr", "port", "dbname", "user")
CANCELLED_WITHIN_S = 10.0
T = TypeVar("T")


@contextmanager
def source_errors(secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise PostgreSQL's errors as :func:`failure_of` classifies them.

    Args:
        secrets: texts to mask in messages.

    Raises:
        SourceFailed: something must be changed first.
        psycopg2.OperationalError: transient, including a lost connection.
    """
    import psycopg2

    try:
        yield
    except psycopg2.Error as exc:
        raise failure_of(exc, secrets) from None if secrets else exc


def connect(dsn: str, *, replication: bool = False) -> Any:
    """A psycopg2 connection in autocommit with the settings of :data:`PINNED`.

    Args:
        dsn: a libpq URI or key=value pairs.
        replication: accept replication commands as well as SQL.

    Raises:
        SourceFailed: password, role, database or a pooler; no retry helps.
        psycopg2.OperationalError: the server is unreachable.
    """
    import psycopg2
    import psycopg2.extras

    given = _parsed(dsn)
    settings: dict[str, Any] = {**_KEPT_ALIVE, **given, "client_encoding": "UTF8"}
    settings.setdefault("application_name", APPLICATION_NAME)
    if replication:
        settings["connection_factory"] = psycopg2.extras.LogicalReplicationConnection
    with source_errors(tuple(given[name] for name in _SECRET if given.get(name))):
        connection = psycopg2.connect(**settings)
        try:
            if replication:
                _refuse_plain(connection)
            else:
                connection.autocommit = True
                _refuse_shared(connection, settings)
            pin(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _refuse_plain(connection: Any) -> None:
    """Refuse a plain connection where a replication connection was requested: a pooler's doing."""
    import psycopg2.errors

    try:
        with connection.cursor() as cursor:
            cursor.execute("IDENTIFY_SYSTEM")
    except psycopg2.errors.SyntaxError as exc:
        raise SourceFailed(
            "a pooler does not support replication connections", helps=DIRECT
        ) from exc


def _refuse_shared(connection: Any, settings: dict[str, Any]) -> None:
    """Refuse a pooler that shares a server session between clients: our settings would leak."""
    import psycopg2

    pids = [_pid(connection)]
    if pids[0] == connection.info.backend_pid:
        return
    for _ in range(_PROBES):
        other = psycopg2.connect(**settings)
        try:
            other.autocommit = True
            pids.append(_pid(connection))
            if _pid(other) in pids or len(set(pids)) > 1:
                raise SourceFailed(
                    "a pooler shares the server's sessions between its clients", helps=DIRECT
                )
        finally:
            other.close()


def _pid(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    return int(pid)


def pin(connection: Any) -> None:
    """Apply :data:`PINNED`, overriding ``options`` of the DSN.

    Raises:
        SourceFailed: the other end is not a server, such as a pooler's console.
    """
    with source_errors(), connection.cursor() as cursor:
        for name, value in PINNED.items():
            cursor.execute(f"SET {name} = '{value}'")
        for name, (version, value) in _PINNED_SINCE.items():
            if connection.server_version >= version:
                cursor.execute(f"SET {name} = '{value}'")


def as_bytes(connection: Any) -> None:
    """Receive the texts of a ``SQL_ASCII`` database as raw bytes.

    Such a database stores any bytes, and the server would end the stream of all tables at the first
    invalid UTF-8. The connection cannot read names from the catalogs afterwards.
    """
    if connection.get_parameter_status("server_encoding") == "SQL_ASCII":
        with source_errors():
            connection.set_client_encoding("SQL_ASCII")


def source_text(dsn: str) -> str:
    """Host, port, database and role of a DSN, without secrets.

    Raises:
        SourceFailed: the DSN cannot be parsed.
    """
    given = _parsed(dsn)
    return " ".join(f"{name}={given[name]}" for name in _SHOWN if given.get(name))


def _parsed(dsn: str) -> dict[str, str]:
    import psycopg2
    import psycopg2.extensions

    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(dsn)
    except psycopg2.Error:
        # libpq's message quotes parts of the DSN, possibly of the password.
        raise SourceFailed(
            "libpq cannot parse the DSN: expected host=… dbname=… user=…, or"
            " postgresql://user@host/database",
            helps=ENCODED,
        ) from None
    if "@" in given.get("host", "").removeprefix("@"):
        raise SourceFailed(
            "the host in the DSN contains '@': an '@' in the password is not encoded", helps=ENCODED
        )
    if not re.fullmatch(r"[\d,]*", given.get("port", "")):
        raise SourceFailed(
            "the port in the DSN is not a number: a '/' or '@' in the password is not encoded",
            helps=ENCODED,
        )
    return given


def ask(connection: Any, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with source_errors(), connection.cursor() as cursor:
        cursor.execute(query, values or None)
        try:
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except UnicodeDecodeError as exc:
            raise SourceFailed(
                f"a name of the source is not UTF-8: {exc.object!r}", helps=NOT_UTF8
            ) from exc
    return rows


@contextmanager
def one_snapshot(connection: Any) -> Iterator[None]:
    """Run all queries of the block in one snapshot, also on a connection in autocommit.

    Within an open transaction its own snapshot stays.
    """
    import psycopg2.extensions

    idle = psycopg2.extensions.TRANSACTION_STATUS_IDLE
    # A replication connection does not say whether it is in autocommit.
    if connection.get_transaction_status() != idle or not connection.autocommit:
        yield
        return
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not connection.closed:
                cursor.execute("ROLLBACK")


class Stopped(Exception):
    """The caller asked to stop; the statement was cancelled."""


class StatementThread(Generic[T]):
    """Runs ``work`` in a thread. Meanwhile nothing else may use the connection."""

    def __init__(self, connection: Any, work: Callable[[], T]) -> None:
        self._connection = connection
        self._work = work
        self._found: list[T] = []
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="postgres-statement", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as exc:
            self._failed = exc

    def wait(self, wait_s: float) -> bool:
        """Whether the work is done, after at most ``wait_s`` seconds."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """The result of ``work``; waits for it, and re-raises its exception."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        [found] = self._found
        return found

    def interrupt(self) -> None:
        """Cancel the statement and wait for the thread; an exception of the work is dropped.

        Afterwards the connection is fit for a rollback at most, and may be closed.
        """
        if not self._thread.is_alive():
            return
        # A cancel opens its own connection, which can block on the network.
        cancel = threading.Thread(target=self._cancel, name="postgres-cancel", daemon=True)
        cancel.start()
        self._thread.join(CANCELLED_WITHIN_S)
        cancel.join(CANCELLED_WITHIN_S)
        # A late cancel would hit the next statement.
        if self._thread.is_alive() or cancel.is_alive():
            _shut(self._connection)
            self._thread.join()

    def _cancel(self) -> None:
        import psycopg2

        with contextlib.suppress(psycopg2.Error):
            self._connection.cancel()


def _shut(connection: Any) -> None:
    """Shut down the socket under a blocked statement."""
    import psycopg2

    with (
        contextlib.suppress(psycopg2.Error, OSError),
        # libpq owns the descriptor: only its duplicate is closed here.
        socket.socket(fileno=os.dup(connection.fileno())) as under,
    ):
        under.shutdown(socket.SHUT_RDWR)
