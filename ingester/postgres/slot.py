"""The replication slot: found, created, read as a stream, and advanced.

    find_slot ─▶ make_slot if missing ─▶ SlotStream ─▶ messages
                                             └ confirm: the server may drop the log before it

The slot moves only where it is told to. psycopg2 moves it by itself to the server's current
position once it was told a position behind the last message, so it is never told one that is not
before that. It also does so while no message has arrived at all. Therefore a heartbeat is sent
before a stream begins and arrives before the server first asks for our position. A server that
has nothing to send for long asks earlier; a stream that skips part of the slot's log turns that
off.
"""

from __future__ import annotations

import select
from typing import Any, NamedTuple

from ingester.postgres.connection import as_bytes, connect, told
from ingester.postgres.pgoutput import Message, parse
from ingester.postgres.server_errors import SourceFailed

MESSAGES_SINCE = 140_000
"""The server's version, as libpq says it, from which on it sends messages of ours, too."""
OWN_TIMEOUT_SINCE = 120_000
"""The version from which on a session says itself how long its server waits for it."""
HEARTBEAT = "ingester"
"""The prefix of our messages in the source's log."""


class FoundSlot(NamedTuple):
    """The slot as the server has it.

    Attributes:
        confirmed_lsn: What was told to be safe.
        lost: Whether the server has thrown away what it should have kept.
        active_pid: Of who reads from it now.
    """

    confirmed_lsn: int
    lost: bool
    active_pid: int | None


def find_slot(connection: Any, name: str) -> FoundSlot | None:
    """Return the slot of a name; None where there is none.

    Raises:
        SourceFailed: it is of another plugin or database.
    """
    version = connection.server_version
    lost = "wal_status = 'lost'" if version >= 130_000 else "false"
    with told(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT plugin, database, database = current_database(),"
            " confirmed_flush_lsn - '0/0'::pg_lsn, active_pid, coalesce(restart_lsn IS NULL OR "
            f"{lost}, false) FROM pg_replication_slots WHERE slot_name = %s",
            (name,),
        )
        row = cursor.fetchone()
    if row is None:
        return None
    plugin, database, ours, confirmed, active_pid, lost_now = row
    if plugin != "pgoutput":
        raise SourceFailed(f"slot {name!r} is of plugin {plugin!r}, not pgoutput: name another one")
    if not ours:
        raise SourceFailed(f"slot {name!r} is of database {database!r}: name another one (--slot)")
    return FoundSlot(int(confirmed or 0), bool(lost_now), active_pid)


def drop_slot(connection: Any, name: str) -> None:
    """Drop a slot that nobody reads from.

    Raises:
        SourceFailed: somebody does.
    """
    with told(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def make_slot(connection: Any, name: str) -> int:
    """Make the slot, and return the position at which it begins.

    It waits for the transactions that run at the source: ``connection.cancel()``, from another
    thread, ends that.

    Raises:
        SourceFailed: there is no room for one, or the role may not.
    """
    with told(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
            (name,),
        )
        [lsn] = cursor.fetchone()
    return int(lsn)


def end_sender(connection: Any, pid: int, slot: str) -> None:
    """End the process that sends a slot's stream to us, which nobody reads any more.

    In the middle of a large transaction it would go on for long, and nobody else could read.
    """
    with told(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid = %s",
            (slot, pid),
        )


def current_lsn(connection: Any) -> int:
    """Return the end of the source's log."""
    with told(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        [lsn] = cursor.fetchone()
    return int(lsn)


def kept_from(connection: Any, slot: str) -> int | None:
    """Return from where on the source keeps its log for a slot; None where it does not.

    That is before what was confirmed, where a transaction has been open for long.
    """
    with told(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT restart_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        )
        row = cursor.fetchone()
    return None if row is None or row[0] is None else int(row[0])


def send_heartbeat(connection: Any) -> None:
    """Write a message into the source's log, which moves the stream of an idle table on.

    It is on the server's disk when this returns, and so in the log that a stream reads at first.
    """
    with told(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'local', true),"
            " pg_logical_emit_message(true, %s, '')",
            (HEARTBEAT,),
        )


class Read(NamedTuple):
    """A message, and its position in the source's log."""

    message: Message
    lsn: int


class SlotStream:
    """The messages of a publication's tables, from where the slot stands."""

    def __init__(self, dsn: str, slot: str, publication: str) -> None:
        """Connect; :meth:`begin` comes next.

        Raises:
            SourceFailed, psycopg2.OperationalError: the server cannot be reached.
        """
        self._slot, self._publication = slot, publication
        self._connection: Any = connect(dsn, replication=True)
        self._cursor = self._connection.cursor()
        self._last_lsn = 0
        self._confirmed = 0

    def begin(self, from_lsn: int) -> int:
        """Begin to read where the slot stands, or later; return from where at least.

        Transactions that end at or before ``from_lsn`` may be left out: reading a log for others
        is quick.

        Raises:
            SourceFailed: somebody else reads, or the slot or the publication is gone.
            psycopg2.OperationalError: the server cannot be reached.
        """
        if self._connection.server_version >= OWN_TIMEOUT_SINCE:
            # What was left out is not safe, so nothing may tell that it is: see above.
            with told(), self._connection.cursor() as cursor:
                cursor.execute(
                    "SET wal_sender_timeout = 0; SET tcp_keepalives_idle = 60;"
                    " SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 6"
                )
        else:
            from_lsn = 0
        as_bytes(self._connection)
        quoted = self._publication.replace('"', '""')
        options = {"proto_version": "1", "publication_names": f'"{quoted}"'}
        if self._connection.server_version >= MESSAGES_SINCE:
            options["messages"] = "true"
        with told():
            self._cursor.start_replication(
                self._slot, start_lsn=from_lsn, decode=False, options=options
            )
        return from_lsn

    def close(self) -> None:
        """Drop the connection; the slot stays."""
        self._connection.close()

    @property
    def backend_pid(self) -> int:
        """The server's process that sends to us."""
        return int(self._connection.info.backend_pid)

    @property
    def server_lsn(self) -> int:
        """How far the server has come with sending, as it said last."""
        return int(self._cursor.wal_end or 0)

    def read(self, wait_s: float) -> Read | None:
        """Return the next message that says something; None where none comes in that time."""
        while True:
            with told():
                found = self._cursor.read_message()
            if found is None:
                if not select.select([self._cursor], [], [], wait_s)[0]:
                    return None
                wait_s = 0.0
                continue
            self._last_lsn = max(self._last_lsn, found.data_start)
            message = parse(found.payload)
            if message is not None:
                return Read(message, found.data_start)

    def confirm(self, lsn: int) -> int:
        """Tell that all up to here is safe; return what was told, which may be before that."""
        lsn = min(lsn, self._last_lsn - 1)
        if lsn > self._confirmed:
            self._confirmed = lsn
        if self._confirmed:
            with told():
                self._cursor.send_feedback(
                    write_lsn=self._confirmed,
                    flush_lsn=self._confirmed,
                    apply_lsn=self._confirmed,
                    force=True,
                )
        return self._confirmed
