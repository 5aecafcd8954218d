"""How far a table's copy is in the source's log.

    from_lsn      the copy was made at it
    its sequence  changes of the table up to it are here
    the report    the replicator has applied the log up to it, and the table follows
    the slot      all before it is in object storage, of every table

Law of this file: a copy has passed a place in the log if one of these has. A table without changes
has no sequence of its own; there the replicator's report tells, and it alone. Nobody is made to do
anything by being asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ingester.client import Client, NotFound
from ingester.postgres.connection import ask
from ingester.postgres.states import TableState, decode_state, partition_of
from ingester.reports.replications import ReplicationReport

REPORT_EVERY_S = 0.5


class CopyPosition:
    """The position of one table's copy."""

    def __init__(
        self, client: Client, table: tuple[str, str], origin: str, connection: Any
    ) -> None:
        self._client = client
        self._table = table
        self._origin = origin
        self._connection = connection
        self._reported_at = -REPORT_EVERY_S

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
        sequences = [each.table_newest or 0 for each in states]
        if max([state.from_lsn, state.upto, *sequences, self._reported()]) >= lsn:
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
            if time.monotonic() > ends_at:
                return False
            meanwhile()
        return True

    def _reported(self) -> int:
        """The place up to which the replicator says that it has applied the log to the table."""
        now = time.monotonic()
        if now - self._reported_at < REPORT_EVERY_S:
            return 0
        self._reported_at = now
        report = report_of(self._client, self._table[0], self._origin)
        if report is None or report.applied is None or report.state != "running":
            return 0
        phases = {each.table: each.phase for each in report.tables}
        # Of very many tables those that follow are counted, and not named.
        others = "following" if set(report.left_out) == {"following"} else "waiting"
        return lsn_of(report.applied) if phases.get(self._table[1], others) == "following" else 0


def report_of(client: Client, namespace: str, origin: str) -> ReplicationReport | None:
    """What the replicator of an origin has reported last; None where nothing is known of one.

    Raises:
        ClientError
    """
    for each in client.status_list("replications"):
        known = {name: each[name] for name in ReplicationReport.__struct_fields__ if name in each}
        report = msgspec.convert(known, ReplicationReport)
        if (report.namespace, report.origin) == (namespace, origin):
            return report
    return None


def lsn_of(text: str) -> int:
    """A place in the log as a number; PostgreSQL writes it in two parts."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
