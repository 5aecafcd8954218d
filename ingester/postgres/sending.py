"""Sends a collected transaction to the daemon.

    Collector.take ─▶ messages ─▶ by origin: the last one waits for the sequence ─▶ daemon
                  └▶ TRUNCATE ─▶ deletes of all rows that the table has at the daemon

A transaction is closed by its last message. A table with a value that cannot be kept is left out
of a transaction as long as nothing of it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ingester.client import NotFound
from ingester.client.sync_stream import SyncColumn
from ingester.postgres.positions import Sent
from ingester.postgres.states import ReplicaState
from ingester.postgres.sync_messages import SyncMessage
from ingester.postgres.tables import Tables


class Sending:
    """The messages of one transaction, or of one for each table: the last of each waits.

    It is sent with the sequence that closes the transaction.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Sent, SyncMessage]] = {}
        self._tables: dict[str, set[str]] = {}
        """The tables that something was sent of, by origin."""

    def put(self, sent: Sent, message: SyncMessage) -> SyncMessage | None:
        """Have a message wait, and return the one that waited before it."""
        before = self._waiting.get(sent.stream.origin)
        self._waiting[sent.stream.origin] = (sent, message)
        return None if before is None else before[1]

    def begins(self, sent: Sent) -> bool:
        """Return whether nothing of the origin's transaction was sent yet."""
        return sent.stream.origin not in self._tables

    def note_sent(self, sent: Sent, message: SyncMessage) -> None:
        """Take note of a message that was sent."""
        self._tables.setdefault(sent.stream.origin, set()).add(message.table)

    def forget(self, sent: Sent, target: str) -> bool:
        """Leave a table out; return whether that can be: nothing of it was sent, nor is it last."""
        origin = sent.stream.origin
        if target in self._tables.get(origin, ()):
            return False
        waits = self._waiting.get(origin)
        if waits is not None and waits[1].table == target:
            del self._waiting[origin]
            return origin not in self._tables  # Else nothing would close what was sent.
        return True

    def last(self) -> Iterator[tuple[Sent, SyncMessage]]:
        """Yield the messages that close their transactions."""
        yield from self._waiting.values()


KEYS_AT_ONCE = 50_000
MOST_ROWS = 1_000_000
"""A table that has more is copied anew instead: a transaction has to be held by the daemon."""


class TooManyRows(Exception):
    """A table that was truncated had too many rows here to delete them one by one."""

    def __init__(self, target: str) -> None:
        super().__init__(f"it was truncated, and had more than {MOST_ROWS:,} rows here")
        self.target = target


def deletes_of_all(tables: Tables, target: str, state: ReplicaState) -> Iterator[SyncMessage]:
    """Return messages that delete all rows that a table has at the daemon.

    Raises:
        TooManyRows, ClientError
    """
    by_source = {column.source: column.name for column in state.columns}
    key = [by_source[name] for name in state.facts.key]
    columns = tuple(SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in key)
    names = [str(number) for number in range(len(columns))]
    try:
        found = tables.client.query(tables.namespace, target, columns=key, limit=MOST_ROWS + 1)
    except NotFound:
        return
    if found.num_rows > MOST_ROWS:
        raise TooManyRows(target)
    for keys in found.combine_chunks().to_batches(max_chunksize=KEYS_AT_ONCE):
        gone = [pa.nulls(keys.num_rows, column.type) for column in keys.columns]
        yield SyncMessage(target, columns, pa.record_batch([*keys.columns, *gone], names=names))
