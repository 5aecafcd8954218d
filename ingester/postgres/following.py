"""One session of the stream: reads from the slot's position until something has to be decided.

    Begin ─▶ changes of tables that lack the transaction ─▶ Commit ─▶ … ─▶ sent as one

A change is applied to a table exactly if its transaction ends behind the table's position, which
its state and the daemon have; a session may therefore begin at any earlier position. What cannot
be applied changes the table's state and ends the session. Transactions are sent whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ingester.postgres.collector import Collector
from ingester.postgres.pgoutput import BeginMessage, Change, CommitMessage, Relation, Truncate
from ingester.postgres.positions import Positions
from ingester.postgres.sending import NewSession, TransactionSender
from ingester.postgres.slot import Read, SlotStream
from ingester.postgres.states import ReplicaState, Shape, ShapeDiffers, shape_then
from ingester.postgres.tables import Tables

SEND_BYTES = 8 << 20
SEND_CHANGES = 50_000
"""Transactions are sent together up to these limits, or until the source has no more for now."""
MOST_BYTES = 96 << 20
"""The tables of a larger transaction are copied again instead."""
IDLE_S = 0.2
ASK_EVERY_S = 1.0


class OtherLog(Exception):
    """The stream lacks a transaction that was read before."""


class SessionTurns(Protocol):
    """Work between transactions."""

    def turn(self) -> None:
        """Do what is due; raise :class:`NewSession` to end the session."""

    def hold(self) -> int | None:
        """The highest position that may be confirmed, or None."""


@dataclass
class Followed:
    """A table that changes are applied to.

    Attributes:
        has: The table has all transactions that end at or before it.
        relation: The stream's last description.
        learned: The description by which changes are read.
    """

    target: str
    state: ReplicaState
    has: int
    relation: Relation | None = None
    learned: Relation | None = None


@dataclass
class ReadTransaction:
    """The transaction that is being read, and the tables that it changes."""

    begin: BeginMessage
    oids: set[int] = field(default_factory=set)


class Session:
    """Reads, collects and sends."""

    def __init__(
        self,
        tables: Tables,
        stream: SlotStream,
        positions: Positions,
        turns: SessionTurns,
        say: Callable[[str], None],
    ) -> None:
        self._expected: int | None = None
        self._tables = tables
        self._stream = stream
        self._positions = positions
        self._turns = turns
        self._sender = TransactionSender(tables, positions, say)
        self._followed: dict[int, Followed] = {}
        self._shapes: dict[int, Shape] = {}
        self._collector = Collector(self._shapes)
        self._transaction: ReadTransaction | None = None
        self._unchecked_bytes = 0
        self._asked_at = 0.0
        self.truncated: dict[int, set[int]] = {}
        """By table, the transactions (32 bits) that truncated it."""

    # Invariant: the four methods below are called between transactions.

    def follow(self, target: str, state: ReplicaState, has: int) -> None:
        """Apply changes to a table from now on."""
        self._followed[state.facts.oid] = Followed(target, state, has)

    def reshape(self, target: str, state: ReplicaState) -> None:
        """Note new facts of a followed table."""
        for each in self._followed.values():
            if each.target == target:
                each.state, each.learned = state, None

    def leave(self, target: str) -> None:
        """Apply no more changes to a table."""
        for oid, each in list(self._followed.items()):
            if each.target == target:
                del self._followed[oid]
                self._shapes.pop(oid, None)

    def expect(self, end_lsn: int) -> None:
        """Expect the stream to repeat a transaction that ends there."""
        self._expected = end_lsn

    @property
    def is_verified(self) -> bool:
        """Whether the expected transaction was read, or none was expected."""
        return self._expected is None

    def targets(self) -> dict[str, int]:
        """The followed tables, with the position of each at the beginning."""
        return {each.target: each.has for each in self._followed.values()}

    @property
    def idle(self) -> bool:
        """Whether no transaction is partly read, and nothing is waiting to be sent."""
        return self._transaction is None and self._collector.upto is None

    def run(self, stopped: Callable[[], bool]) -> None:
        """Follow until stopped.

        Raises:
            NewSession: begin another session.
            OtherLog: the expected transaction is not in the stream. Nothing after it was sent.
            Restarted: another process of the daemon answers.
        """
        while not stopped():
            waiting = self._collector.upto is not None
            # A table that catches up is sent alone, in as few transactions as possible.
            at_once = waiting and not self._positions.catching_up
            read = self._stream.read(0.0 if at_once else IDLE_S)
            if read is not None:
                self._take(read)
            if self._transaction is None and waiting and (read is None or self._is_much()):
                self.send()
            if self._transaction is None and (read is None or self._is_time()):
                self._ask()

    def _is_much(self) -> bool:
        return self._collector.nbytes >= SEND_BYTES or self._collector.changes >= SEND_CHANGES

    def _is_time(self) -> bool:
        return time.monotonic() - self._asked_at >= ASK_EVERY_S

    # Reading

    def _take(self, read: Read) -> None:
        message = read.message
        if isinstance(message, Change):
            self._change(message)
        elif isinstance(message, BeginMessage):
            if self._collector.upto is not None and not self._same_origin(message):
                self.send()
            self._transaction = ReadTransaction(message)
        elif isinstance(message, CommitMessage):
            self._commit(message)
        elif isinstance(message, Relation):
            if followed := self._followed.get(message.oid):
                followed.relation = message
        elif isinstance(message, Truncate):
            self._truncate(message)

    def _same_origin(self, begin: BeginMessage) -> bool:
        positions, upto = self._positions, self._collector.upto
        return upto is None or positions.is_ahead(upto) == positions.is_ahead(begin.final_lsn + 1)

    def _wanted(self, oid: int) -> Followed | None:
        """The table, if it lacks the current transaction."""
        followed, transaction = self._followed.get(oid), self._transaction
        if followed is None or transaction is None or transaction.begin.final_lsn < followed.has:
            return None
        if followed.relation is not None and followed.relation is not followed.learned:
            self._learn(followed, followed.relation)
        transaction.oids.add(oid)
        return followed

    def _change(self, change: Change) -> None:
        if self._wanted(change.relation) is None:
            return
        self._collector.add(change)
        self._unchecked_bytes += len(change.data)
        if self._unchecked_bytes > MOST_BYTES // 8:
            self._unchecked_bytes = 0
            self._check_size()

    def _check_size(self) -> None:
        """Order copies of a transaction's tables if it is too large."""
        transaction = self._transaction
        assert transaction is not None
        if self._collector.nbytes < MOST_BYTES:
            return
        reason = f"a transaction has more than {MOST_BYTES >> 20} MiB of changes"
        for oid in transaction.oids:
            self._tables.order(self._followed[oid].target, reason, oid)
        raise NewSession

    def _learn(self, followed: Followed, relation: Relation) -> None:
        """Read the table's changes by the stream's description."""
        followed.learned = relation
        try:
            self._shapes[relation.oid] = shape_then(followed.target, followed.state, relation)
            self._collector.relation(relation)
        except ShapeDiffers as exc:
            self._tables.order_if_again(followed.target, exc.reason, relation.oid)
            raise NewSession from exc

    def _truncate(self, message: Truncate) -> None:
        assert self._transaction is not None
        for oid in message.relations:
            if self._wanted(oid) is not None:
                self.truncated.setdefault(oid, set()).add(self._transaction.begin.xid)
                self._collector.truncate(oid)

    def _commit(self, message: CommitMessage) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        if self._expected is not None and message.end_lsn >= self._expected:
            if message.end_lsn > self._expected:
                raise OtherLog
            self._expected = None
        positions = self._positions
        if transaction.oids:
            try:
                self._collector.commit(message.end_lsn)
            except ShapeDiffers as exc:
                self._tables.order(exc.target, exc.reason, exc.oid)
                raise NewSession from exc
            positions.transactions += 1
        elif self._collector.upto is None:
            positions.read_upto = max(positions.read_upto, message.end_lsn)
        positions.committed_at = transaction.begin.committed_at

    # Sending

    def send(self) -> None:
        """Send the collected transactions as one."""
        collector, positions = self._collector, self._positions
        upto, changes = collector.upto, collector.changes
        if upto is None:
            return
        states = {each.target: each.state for each in self._followed.values()}
        for target in self._sender.send(collector, states):
            self.leave(target)
        positions.changes += changes
        positions.read_upto = max(positions.read_upto, upto)
        self._confirm()

    def _ask(self) -> None:
        """Ask the daemon for its position, take a turn, and confirm to the slot."""
        if self._is_time():
            self._asked_at = time.monotonic()
            self._positions.ask()
        self._turns.turn()
        self._confirm()

    def _confirm(self) -> None:
        positions = self._positions
        lsn = positions.confirmable(self._turns.hold())
        if lsn > positions.confirmed or self._is_time():
            positions.confirmed = max(positions.confirmed, self._stream.confirm(lsn))
