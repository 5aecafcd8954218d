"""How far a table's copy is in the source's log.

    from_lsn      the copy was made at it
    its sequence  changes of the table up to it are here
    the slot      all before it is in object storage, of every table

Law of this file: a copy has passed a place in the log if one of these has. A table without changes
has no sequence of its own; there the slot tells, which follows what is in object storage. So the
daemon is asked, now and then, to put what it has there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ingester.client import Client, ClientError, NotFound
from ingester.postgres.connection import ask
from ingester.postgres.states import TableState, decode_state, partition_of

PERSIST_EVERY_S = 5.0
PERSIST_WITHIN_S = 30.0


class CopyPosition:
    """The position of one table's copy."""

    def __init__(
        self, client: Client, table: tuple[str, str], origin: str, connection: Any
    ) -> None:
        self._client = client
        self._table = table
        self._origin = origin
        self._connection = connection
        self._persisted_at = time.monotonic()

    def state(self) -> TableState | None:
        """The state that the table has of the origin now.

        Raises:
            BadState, ClientError
        """
        try:
            stored = self._client.checkpoint(*self._table, partition_of(self._origin))
        except NotFound:
            return None
        return None if stored.state is None else decode_state(stored.state)

    def passed(self, lsn: int) -> bool:
        """Return whether all that the source's log has before ``lsn`` is here.

        Raises:
            BadState, ClientError, SourceFailed, psycopg2.OperationalError
        """
        state = self.state()
        if state is None:
            return False
        states = self._client.origins(self._origin, self._table)
        sequences = [each.table_sequence or 0 for each in states]
        if max([state.from_lsn, state.upto, *sequences]) >= lsn:
            return True
        rows = ask(
            self._connection,
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            " WHERE slot_name = %s AND database = current_database()"
            " AND confirmed_flush_lsn IS NOT NULL",
            state.place.slot,
        )
        return any(int(confirmed) >= lsn for (confirmed,) in rows)

    def wait(self, lsn: int, patience_s: float, meanwhile: Callable[[], None]) -> bool:
        """Return whether the copy has passed ``lsn``, once it has, or has not in that time.

        Args:
            meanwhile: called between two looks; takes its time.
        """
        ends_at = time.monotonic() + patience_s
        while not self.passed(lsn):
            now = time.monotonic()
            if now > ends_at:
                return False
            if now - self._persisted_at > PERSIST_EVERY_S:
                self._persisted_at = now
                self._persist()
            meanwhile()
        return True

    def _persist(self) -> None:
        # It helps, and is needed by nothing: the slot moves without it, later.
        try:
            self._client.persist(self._table[0], timeout_s=PERSIST_WITHIN_S)
        except ClientError:
            return
