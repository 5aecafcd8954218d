"""Sends a collected transaction to the daemon.

    Collector.take ─▶ messages ─▶ by origin: the last one waits for the sequence ─▶ daemon
                  └▶ TRUNCATE ─▶ deletes of all rows that the table has at the daemon

A transaction is closed by its last message. A table with a value that cannot be kept is left out
of a transaction as long as nothing of it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from ingester.client import InvalidRequest, NotFound, Restarted
from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import Collector, TruncatedTable
from ingester.postgres.positions import Positions, SentOrigin
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import ReplicaState
from ingester.postgres.sync_messages import SyncMessage
from ingester.postgres.tables import Tables
from ingester.postgres.types import ValueNotKept

KEYS_AT_ONCE = 50_000
MOST_TRUNCATED_ROWS = 1_000_000
"""A truncated table with more rows is copied again: the daemon would hold all the deletes."""


class NewSession(Exception):
    """The session must end: the set of followed tables has changed."""


class _OpenMessages:
    """The last message of each origin's open transaction, and the tables already sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[SentOrigin, SyncMessage]] = {}
        self._sent: dict[str, set[str]] = {}

    def replace(self, sent: SentOrigin, message: SyncMessage) -> SyncMessage | None:
        """Keep a message as the origin's last one; return the previous one."""
        before = self._waiting.get(sent.stream.origin)
        self._waiting[sent.stream.origin] = (sent, message)
        return None if before is None else before[1]

    def is_new(self, sent: SentOrigin) -> bool:
        """Whether nothing of the origin's transaction was sent yet."""
        return sent.stream.origin not in self._sent

    def note_sent(self, sent: SentOrigin, message: SyncMessage) -> None:
        """Note that a message was sent."""
        self._sent.setdefault(sent.stream.origin, set()).add(message.table)

    def forget(self, sent: SentOrigin, target: str) -> bool:
        """Leave a table out; False if part of it was sent, or only it could close the rest."""
        origin = sent.stream.origin
        if target in self._sent.get(origin, ()):
            return False
        waits = self._waiting.get(origin)
        if waits is not None and waits[1].table == target:
            del self._waiting[origin]
            return origin not in self._sent
        return True

    def last(self) -> Iterator[tuple[SentOrigin, SyncMessage]]:
        """The messages that close their transactions."""
        yield from self._waiting.values()


class TransactionSender:
    """Sends the transactions of one session."""

    def __init__(self, tables: Tables, positions: Positions, say: Callable[[str], None]) -> None:
        self._tables = tables
        self._positions = positions
        self._say = say

    def send(self, collector: Collector, states: Mapping[str, ReplicaState]) -> set[str]:
        """Send everything collected as one transaction, or one per table that catches up.

        A table with a value that cannot be kept is set aside and left out. If part of it was
        already sent, the next session sends the others again.

        Args:
            states: the followed tables by their names here.

        Returns:
            The tables that were left out.

        Raises:
            NewSession: a table must be copied, or is set aside, before others can continue.
            Restarted: another process of the daemon answers.
        """
        upto = collector.upto
        assert upto is not None
        messages = _OpenMessages()
        left_out: set[str] = set()

        def leave_out(exc: ValueNotKept) -> None:
            left_out.add(exc.target)
            helps = ("correct the value at the source, or set a policy: --values",)
            self._set_aside(states[exc.target], exc.target, str(exc), helps)
            if not messages.forget(self._positions.of(upto, exc.target), exc.target):
                raise NewSession

        for message in collector.take(leave_out):
            if isinstance(message, TruncatedTable):
                parts = self._deletes_of_all(message.target, states[message.target])
            else:
                parts = iter((message,))
            for part in parts:
                if part.table in left_out:
                    break
                sent = self._positions.of(upto, part.table)
                if (before := messages.replace(sent, part)) is not None:
                    state = states[before.table]
                    self._send(sent, before, state, begin=messages.is_new(sent), sequence=None)
                    messages.note_sent(sent, before)
        for sent, part in messages.last():
            begin = messages.is_new(sent)
            self._send(sent, part, states[part.table], begin=begin, sequence=upto)
        return left_out

    def _send(
        self,
        sent: SentOrigin,
        message: SyncMessage,
        state: ReplicaState,
        *,
        begin: bool,
        sequence: int | None,
    ) -> None:
        try:
            answer = sent.stream.send(*message, begin=begin, sequence=sequence)
        except InvalidRequest as exc:
            if "max_transaction_bytes" in str(exc):
                self._tables.order(message.table, str(exc), state.facts.oid)
            else:
                reason = f"the daemon refuses its changes: {exc}"
                self._set_aside(state, message.table, reason, ())
            raise NewSession from exc
        if answer.first:
            raise Restarted("the daemon lost an open transaction")
        # Its own sequence may be a duplicate: files can have it although the daemon's log is lost.
        if answer.duplicate and sequence is not None and sequence != answer.memory_sequence:
            raise SourceFailed(
                f"the daemon already has sequence {sequence} of origin {sent.stream.origin!r}:"
                " another replicator uses it; set another --origin"
            )
        sent.note(answer)
        self._positions.rows[message.table] += message.batch.num_rows

    def _set_aside(
        self, state: ReplicaState, target: str, reason: str, helps: tuple[str, ...]
    ) -> None:
        self._say(f"table {target} is set aside: {reason}")
        self._tables.set_aside(target, reason, helps)
        self._tables.order(target, reason, state.facts.oid)
        self._tables.order_failed(target)

    def _deletes_of_all(self, target: str, state: ReplicaState) -> Iterator[SyncMessage]:
        """Messages that delete all rows that the daemon has of a table.

        A query sees everything sent before, and nothing of an open transaction.
        """
        tables = self._tables
        by_source = {column.source: column.name for column in state.columns}
        key = [by_source[name] for name in state.facts.key]
        columns = tuple(SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in key)
        names = [str(number) for number in range(len(columns))]
        most = MOST_TRUNCATED_ROWS
        try:
            found = tables.client.query(tables.namespace, target, columns=key, limit=most + 1)
        except NotFound:
            return
        if found.num_rows > most:
            reason = f"it was truncated and had more than {most:,} rows here"
            tables.order(target, reason, state.facts.oid)
            raise NewSession
        for keys in found.combine_chunks().to_batches(max_chunksize=KEYS_AT_ONCE):
            gone = [pa.nulls(keys.num_rows, column.type) for column in keys.columns]
            batch = pa.record_batch([*keys.columns, *gone], names=names)
            yield SyncMessage(target, columns, batch)
