"""Connections to PostgreSQL: fixed session settings, classified errors, interruptible statements.

    connect ──▶ a plain or a replication connection     ask ──▶ rows     told ──▶ SourceFailed
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
"""The settings by which the server writes values, and by which it does not end what takes long.
With ``row_security`` off it refuses a query whose rows a policy would filter."""
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
"""A server that is gone without a word is noticed within a minute; the DSN may say otherwise."""

_PROBES = 3
_SECRET = ("password", "sslpassword", "passfile")
_SHOWN = ("service", "host", "hostaddr", "port", "dbname", "user")


@contextmanager
def told(secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise PostgreSQL's errors as what they are: passing ones, and those no retry helps.

    Args:
        secrets: texts that no message must have.

    Raises:
        SourceFailed: something has to be changed first.
        psycopg2.OperationalError: a retry may help; a lost connection is one of these.
    """
    import psycopg2

    try:
        yield
    except psycopg2.Error as exc:
        raise failure_of(exc, secrets) from None if secrets else exc


def connect(dsn: str, *, replication: bool = False) -> Any:
    """A psycopg2 connection in autocommit, with the settings of :data:`PINNED`.

    Args:
        dsn: as libpq has it, a URI or pairs.
        replication: make one that takes replication commands beside SQL.

    Raises:
        SourceFailed: no retry helps: the password, the role, the database, a pooler.
        psycopg2.OperationalError: the server cannot be reached for now.
    """
    import psycopg2
    import psycopg2.extras

    given = _parsed(dsn)
    settings: dict[str, Any] = {**_KEPT_ALIVE, **given, "client_encoding": "UTF8"}
    settings.setdefault("application_name", APPLICATION_NAME)
    if replication:
        settings["connection_factory"] = psycopg2.extras.LogicalReplicationConnection
    with told(tuple(given[name] for name in _SECRET if given.get(name))):
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
    """Refuse a connection that was to stream: a pooler has dropped the wish on the way."""
    import psycopg2.errors

    try:
        with connection.cursor() as cursor:
            cursor.execute("IDENTIFY_SYSTEM")
    except psycopg2.errors.SyntaxError as exc:
        raise SourceFailed("a pooler does not pass replication on", helps=DIRECT) from exc


def _refuse_shared(connection: Any, settings: dict[str, Any]) -> None:
    """Refuse a pooler that gives one session to several clients: what is set would reach others."""
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
    """The server's process of a connection, as the server has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    return int(pid)


def pin(connection: Any) -> None:
    """Set the settings of :data:`PINNED`, whatever ``options`` of the DSN say.

    Raises:
        SourceFailed: the connection is to a pooler's own console, or the like.
        psycopg2.OperationalError: the connection is lost.
    """
    with told(), connection.cursor() as cursor:
        for name, value in PINNED.items():
            cursor.execute(f"SET {name} = '{value}'")
        for name, (version, value) in _PINNED_SINCE.items():
            if connection.server_version >= version:
                cursor.execute(f"SET {name} = '{value}'")


def as_bytes(connection: Any) -> None:
    """Have the texts of a ``SQL_ASCII`` database as the bytes that they are.

    Such a database takes any bytes; the server ends a stream at the first ones that are no UTF-8,
    for all tables. Names that a catalogue has are no longer text for this connection.

    Raises:
        SourceFailed, psycopg2.OperationalError
    """
    if connection.get_parameter_status("server_encoding") == "SQL_ASCII":
        with told():
            connection.set_client_encoding("SQL_ASCII")


def source_text(dsn: str) -> str:
    """The source for people: host, port, database and role, without any secret.

    Raises:
        SourceFailed: it is not a DSN.
    """
    given = _parsed(dsn)
    return " ".join(f"{name}={given[name]}" for name in _SHOWN if given.get(name))


def _parsed(dsn: str) -> dict[str, str]:
    import psycopg2
    import psycopg2.extensions

    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(dsn)
    except psycopg2.Error:
        # Its message has parts of the DSN, and those may be of the password.
        raise SourceFailed(
            "the DSN is not one that libpq reads: host=… dbname=… user=…, or"
            " postgresql://user@host/database",
            helps=ENCODED,
        ) from None
    if "@" in given.get("host", "").removeprefix("@"):
        raise SourceFailed(
            "the host in the DSN has an @: the password has one that is not encoded", helps=ENCODED
        )
    if not re.fullmatch(r"[\d,]*", given.get("port", "")):
        raise SourceFailed(
            "the port in the DSN is no number: the password has a '/' or '@' that is not encoded",
            helps=ENCODED,
        )
    return given


def ask(connection: Any, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows that a query answers.

    Raises:
        SourceFailed
        psycopg2.OperationalError: a retry may help.
    """
    with told(), connection.cursor() as cursor:
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
    """Let all queries within see the same, also on a connection that is in autocommit.

    Where a transaction runs already, its snapshot stays.

    Raises:
        SourceFailed
        psycopg2.OperationalError: the connection is lost.
    """
    import psycopg2.extensions

    idle = psycopg2.extensions.TRANSACTION_STATUS_IDLE
    # A replication connection does not say whether it is in autocommit.
    if connection.get_transaction_status() != idle or not connection.autocommit:
        yield
        return
    with told(), connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not connection.closed:
                cursor.execute("ROLLBACK")


CANCELLED_WITHIN_S = 10.0
T = TypeVar("T")


class Stopped(Exception):
    """The caller has said to stop, and nothing is left of what was begun."""


class StatementThread(Generic[T]):
    """Runs ``work``, which uses the connection; nobody else does meanwhile."""

    def __init__(self, connection: Any, work: Callable[[], T]) -> None:
        """Begin at once."""
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
        """Whether it is done, after so many seconds at most."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What ``work`` has returned, once it is done; what it has raised is raised."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        [found] = self._found
        return found

    def interrupt(self) -> None:
        """Cancel the statement and wait for the thread's end; what the work raises is dropped.

        The connection is good for a rollback at most afterwards, and may be lost.
        """
        if not self._thread.is_alive():
            return
        # It opens a connection of its own, which may take as long as the network likes.
        cancel = threading.Thread(target=self._cancel, name="postgres-cancel", daemon=True)
        cancel.start()
        self._thread.join(CANCELLED_WITHIN_S)
        cancel.join(CANCELLED_WITHIN_S)
        # A cancel that comes late would end what is asked next.
        if self._thread.is_alive() or cancel.is_alive():
            _shut(self._connection)
            self._thread.join()

    def _cancel(self) -> None:
        import psycopg2

        with contextlib.suppress(psycopg2.Error):
            self._connection.cancel()


def _shut(connection: Any) -> None:
    """End the network connection under a statement that waits for it."""
    import psycopg2

    with (
        contextlib.suppress(psycopg2.Error, OSError),
        # The descriptor stays libpq's own: its copy is what is closed here.
        socket.socket(fileno=os.dup(connection.fileno())) as under,
    ):
        under.shutdown(socket.SHUT_RDWR)
