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

from ingester.postgres.connection import as_bytes, connect, source_errors
from ingester.postgres.pgoutput import Message, parse
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import History
from ingester.postgres.timelines import read_history

MESSAGES_SINCE = 140_000
"""Servers from this version send our messages in the stream."""
OWN_TIMEOUT_SINCE = 120_000
"""Servers from this version let a session set ``wal_sender_timeout``."""
EXTENDED_AT_ONCE = 1 << 20
HEARTBEAT = "ingester"
"""The prefix of our messages in the source's log."""


class FoundSlot(NamedTuple):
    """The slot as the server has it.

    Attributes:
        confirmed_lsn: The position confirmed as safe.
        lost: Whether the server has removed log that the slot needs.
        active_pid: The process that reads from it.
    """

    confirmed_lsn: int
    lost: bool
    active_pid: int | None


def find_slot(connection: Any, name: str) -> FoundSlot | None:
    """The slot of this name, or None.

    Raises:
        SourceFailed: it belongs to another plugin or database.
    """
    version = connection.server_version
    lost = "wal_status = 'lost'" if version >= 130_000 else "false"
    with source_errors(), connection.cursor() as cursor:
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
        raise SourceFailed(f"slot {name!r} uses plugin {plugin!r}, not pgoutput: choose another")
    if not ours:
        raise SourceFailed(f"slot {name!r} belongs to database {database!r}: choose another --slot")
    return FoundSlot(int(confirmed or 0), bool(lost_now), active_pid)


def drop_slot(connection: Any, name: str) -> None:
    """Drop an unused slot.

    Raises:
        SourceFailed: a process reads from it.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def make_slot(connection: Any, name: str) -> int:
    """Create the slot and return its first position.

    The server waits for running transactions; ``connection.cancel()`` interrupts that.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
            (name,),
        )
        [lsn] = cursor.fetchone()
    return int(lsn)


def end_sender(connection: Any, pid: int, slot: str) -> None:
    """Terminate the server process that sends the slot's stream to this connection.

    In a large transaction it would continue for long and block other readers.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid = %s",
            (slot, pid),
        )


def current_lsn(connection: Any) -> int:
    """The end of the source's log."""
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        [lsn] = cursor.fetchone()
    return int(lsn)


def server_run(connection: Any) -> tuple[Any, ...]:
    """A value that changes when the server has crashed.

    After a crash the server resets its statistics. It keeps its start time if it survives the
    crash of a process, and its statistics when it is restarted in order.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("SELECT stats_reset FROM pg_stat_bgwriter")
        found: tuple[Any, ...] = cursor.fetchone()
    return found


def kept_from(connection: Any, slot: str) -> int | None:
    """The position from which the source keeps its log for a slot; None if it does not.

    A long transaction keeps it before the confirmed position.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT restart_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        )
        row = cursor.fetchone()
    return None if row is None or row[0] is None else int(row[0])


def send_heartbeat(connection: Any) -> None:
    """Write a message into the source's log; it advances the stream of idle tables.

    It is flushed when this returns, so a stream that begins afterwards reads it first.
    """
    with source_errors(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'local', true),"
            " pg_logical_emit_message(true, %s, '')",
            (HEARTBEAT,),
        )


def extend_log(connection: Any, upto: int) -> None:
    """Write messages into the source's log until it ends at a position, or later."""
    while (lacks := upto - current_lsn(connection)) > 0:
        with source_errors(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_logical_emit_message(false, %s, repeat(' ', %s))",
                (HEARTBEAT, min(lacks, EXTENDED_AT_ONCE)),
            )


class Read(NamedTuple):
    """A message and its position in the source's log."""

    message: Message
    lsn: int


class SlotStream:
    """The messages of a publication's tables, from the slot's position."""

    def __init__(self, dsn: str, slot: str, publication: str) -> None:
        """Connect. :meth:`begin` starts the stream."""
        self._slot, self._publication = slot, publication
        self._connection: Any = connect(dsn, replication=True)
        self._cursor = self._connection.cursor()
        self._last_lsn = 0
        self._confirmed = 0

    def begin(self, from_lsn: int) -> int:
        """Start the stream at the slot's position or later; return the earliest position.

        The server may skip transactions that end at or before ``from_lsn``.

        Raises:
            SourceFailed: another process reads, or the slot or publication is missing.
        """
        if self._connection.server_version >= OWN_TIMEOUT_SINCE:
            # Skipped log is not safe, so no status message may confirm it: see above.
            with source_errors(), self._connection.cursor() as cursor:
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
        with source_errors():
            self._cursor.start_replication(
                self._slot, start_lsn=from_lsn, decode=False, options=options
            )
        return from_lsn

    def close(self) -> None:
        self._connection.close()

    def history(self) -> History:
        """The history of the log that the stream shows; before :meth:`begin`."""
        return read_history(self._connection)

    @property
    def backend_pid(self) -> int:
        """The server process that sends the stream."""
        return int(self._connection.info.backend_pid)

    @property
    def server_lsn(self) -> int:
        """The server's position, as it last reported."""
        return int(self._cursor.wal_end or 0)

    def read(self, wait_s: float) -> Read | None:
        """The next relevant message, or None if none arrives in time."""
        while True:
            with source_errors():
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
        """Confirm a position as safe; return the confirmed position, which may be lower."""
        lsn = min(lsn, self._last_lsn - 1)
        if lsn > self._confirmed:
            self._confirmed = lsn
        if self._confirmed:
            with source_errors():
                self._cursor.send_feedback(
                    write_lsn=self._confirmed,
                    flush_lsn=self._confirmed,
                    apply_lsn=self._confirmed,
                    force=True,
                )
        return self._confirmed
