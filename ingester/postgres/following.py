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

from ingester.client import InvalidRequest, Restarted
from ingester.postgres.collector import Collector, TruncatedTable
from ingester.postgres.pgoutput import BeginMessage, Change, CommitMessage, Relation, Truncate
from ingester.postgres.positions import Positions, Sent
from ingester.postgres.sending import Sending, TooManyRows, deletes_of_all
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.shape import Shape, ShapeDiffers, shape_then
from ingester.postgres.slot import Read, SlotStream
from ingester.postgres.states import ReplicaState
from ingester.postgres.sync_messages import SyncMessage
from ingester.postgres.tables import Tables
from ingester.postgres.types import ValueNotKept

SEND_BYTES = 8 << 20
SEND_CHANGES = 50_000
"""Transactions are sent together until they have so much, or the source has no more for now."""
MOST_BYTES = 96 << 20
"""A transaction that has more is not taken apart: its tables are copied anew."""
IDLE_S = 0.2
ASK_EVERY_S = 1.0


class NewSession(Exception):
    """The session is over: a table is followed no more, or one more is."""


class SessionTurns(Protocol):
    """What is done beside the stream, between transactions."""

    def turn(self) -> None:
        """Do what is due. Raises :class:`NewSession` where the session has to end."""

    def hold(self) -> int | None:
        """The position that the slot may not pass; None where there is none."""


@dataclass
class Followed:
    """A table that changes are applied to.

    Attributes:
        has: The table has all transactions that end at or before it.
        relation: As the stream said last; ``fresh``: no change came since.
    """

    target: str
    state: ReplicaState
    has: int
    relation: Relation | None = None
    fresh: bool = False


@dataclass
class ReadTransaction:
    """The transaction that is being read."""

    begin: BeginMessage
    oids: set[int] = field(default_factory=set)
    """The tables that it has changed."""


class Session:
    """Reads, collects and sends.

    Args:
        turns: Has a turn now and then; it says, too, how far the slot may be told to be at most.
    """

    def __init__(
        self,
        tables: Tables,
        stream: SlotStream,
        positions: Positions,
        turns: SessionTurns,
        say: Callable[[str], None],
    ) -> None:
        self._tables = tables
        self._stream = stream
        self._positions = positions
        self._turns = turns
        self._say = say
        self._followed: dict[int, Followed] = {}
        self._shapes: dict[int, Shape] = {}
        self._collector = Collector(self._shapes)
        self._transaction: ReadTransaction | None = None
        self._asked_at = 0.0
        self.truncated: dict[int, set[int]] = {}
        """The transactions (32 bits) that have truncated each table."""

    def follow(self, target: str, state: ReplicaState, has: int) -> None:
        """Apply changes to a table from now on, or by another shape. Between transactions."""
        old = self._followed.get(state.facts.oid)
        self._followed[state.facts.oid] = Followed(target, state, has)
        if old is not None and old.relation is not None:
            self._relation(old.relation)

    def reshape(self, target: str, state: ReplicaState) -> None:
        """Take note that a followed table has other facts now. Between transactions."""
        for each in self._followed.values():
            if each.target == target:
                each.state = state
                each.fresh = each.relation is not None

    def leave(self, target: str) -> None:
        """Apply no more changes to a table. Between transactions, with all of it sent."""
        for oid, each in list(self._followed.items()):
            if each.target == target:
                del self._followed[oid]
                self._shapes.pop(oid, None)

    def targets(self) -> dict[str, int]:
        """Return the tables that are followed, and what each had when that began."""
        return {each.target: each.has for each in self._followed.values()}

    @property
    def idle(self) -> bool:
        """Whether no transaction is read in part, and nothing waits to be sent."""
        return self._transaction is None and self._collector.upto is None

    def run(self, stopped: Callable[[], bool]) -> None:
        """Go on until stopped.

        Raises:
            NewSession: begin another one.
            Restarted: the daemon is another one.
            SourceFailed, ClientError, psycopg2.OperationalError
        """
        while not stopped():
            waiting = self._collector.upto is not None
            # A table that catches up is sent alone: in as few transactions as can be.
            at_once = waiting and not self._positions.catching_up
            read = self._stream.read(0.0 if at_once else IDLE_S)
            if read is not None:
                self._take(read)
            if self._transaction is None and waiting and (read is None or self._is_much()):
                self.send()
            if self._transaction is None and (read is None or self._is_time()):
                self.ask()

    def _is_much(self) -> bool:
        return self._collector.nbytes >= SEND_BYTES or self._collector.changes >= SEND_CHANGES

    def _is_time(self) -> bool:
        return time.monotonic() - self._asked_at >= ASK_EVERY_S

    # What is read

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
            self._relation(message)
        elif isinstance(message, Truncate):
            self._truncate(message)

    def _same_origin(self, begin: BeginMessage) -> bool:
        positions, upto = self._positions, self._collector.upto
        return upto is None or positions.is_ahead(upto) == positions.is_ahead(begin.final_lsn + 1)

    def _wanted(self, oid: int) -> Followed | None:
        """The table, if it lacks the transaction that is read."""
        followed, transaction = self._followed.get(oid), self._transaction
        if followed is None or transaction is None or transaction.begin.final_lsn < followed.has:
            return None
        if followed.fresh:
            self._learn(followed)
        transaction.oids.add(oid)
        return followed

    def _change(self, change: Change) -> None:
        if self._wanted(change.relation) is None:
            return
        self._collector.add(change)
        self._weighed += len(change.data)
        if self._weighed > MOST_BYTES // 8:
            self._weighed = 0
            self._check_size()

    _weighed = 0

    def _check_size(self) -> None:
        """Give a transaction up that has too much: copies of its tables have all of it."""
        transaction = self._transaction
        assert transaction is not None
        if self._collector.nbytes < MOST_BYTES:
            return
        reason = f"a transaction has more than {MOST_BYTES >> 20} MiB of changes"
        for oid in transaction.oids:
            self._tables.order(self._followed[oid].target, reason, oid)
        raise NewSession

    def _relation(self, relation: Relation) -> None:
        followed = self._followed.get(relation.oid)
        if followed is not None:
            followed.relation, followed.fresh = relation, True

    def _learn(self, followed: Followed) -> None:
        """Read changes by the columns that the stream says the table has."""
        relation, state = followed.relation, followed.state
        assert relation is not None
        followed.fresh = False
        try:
            self._shapes[relation.oid] = shape_then(followed.target, state, relation)
            self._collector.relation(relation)
        except ShapeDiffers as exc:
            self._tables.order_if_again(followed.target, exc.reason, relation.oid)
            raise NewSession from exc

    def _truncate(self, message: Truncate) -> None:
        assert self._transaction is not None
        for oid in message.relations:
            followed = self._wanted(oid)
            if followed is not None:
                self.truncated.setdefault(oid, set()).add(self._transaction.begin.xid)
                self._collector.truncate(oid)

    def _commit(self, message: CommitMessage) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
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

    # What is sent

    def send(self) -> None:
        """Send the transactions that were collected, as one."""
        collector, positions = self._collector, self._positions
        upto = collector.upto
        if upto is None:
            return
        changes = collector.changes
        try:
            self._close(collector, upto)
        except TooManyRows as exc:
            self._tables.order(exc.target, str(exc), self._oid_of(exc.target))
            raise NewSession from exc
        positions.changes += changes
        positions.read_upto = max(positions.read_upto, upto)
        self.confirm()

    def _close(self, collector: Collector, upto: int) -> None:
        """Send a transaction under its origin; or one for each table, where tables catch up.

        A table with a value that is not kept is left out and followed no more, and the others go
        on; where a part of it was sent already, all of it is sent anew by the next session.
        """
        sending = Sending()
        left_out: set[str] = set()

        def leave_out(exc: ValueNotKept) -> None:
            left_out.add(exc.target)
            helps = ("correct the value at the source, or name a policy: --values",)
            self._set_aside(exc.target, str(exc), helps)
            if not sending.forget(self._positions.of(upto, exc.target), exc.target):
                raise NewSession

        for message in collector.take(leave_out):
            if isinstance(message, TruncatedTable):
                key = self._followed[self._oid_of(message.target)].state
                parts = deletes_of_all(self._tables, message.target, key)
            else:
                parts = iter((message,))
            for part in parts:
                if part.table in left_out:
                    break
                sent = self._positions.of(upto, part.table)
                if (before := sending.put(sent, part)) is not None:
                    self._send_one(sent, before, begin=sending.begins(sent), sequence=None)
                    sending.note_sent(sent, before)
        for sent, part in sending.last():
            self._send_one(sent, part, begin=sending.begins(sent), sequence=upto)
        for target in left_out:
            self.leave(target)

    def _send_one(
        self, sent: Sent, message: SyncMessage, *, begin: bool, sequence: int | None
    ) -> None:
        try:
            answer = sent.stream.send(*message, begin=begin, sequence=sequence)
        except InvalidRequest as exc:
            if "max_transaction_bytes" in str(exc):
                for oid in self._followed:
                    if self._followed[oid].target == message.table:
                        self._tables.order(message.table, str(exc), oid)
                raise NewSession from exc
            self._aside(message.table, f"the daemon does not take its changes: {exc}")
            raise AssertionError from exc
        if answer.first:
            raise Restarted("what the daemon had of a transaction is gone")
        if answer.duplicate and sequence is not None:
            raise SourceFailed(
                f"the daemon has sequence {sequence} of origin {sent.stream.origin!r} already:"
                " somebody else replicates under it; name another --origin"
            )
        sent.note(answer)
        self._positions.rows[message.table] += message.batch.num_rows

    def _aside(self, target: str, reason: str, helps: tuple[str, ...] = ()) -> None:
        self._set_aside(target, reason, helps)
        raise NewSession

    def _set_aside(self, target: str, reason: str, helps: tuple[str, ...]) -> None:
        self._say(f"table {target} is set aside: {reason}")
        oid = self._oid_of(target)
        self._tables.set_aside(target, reason, helps)
        self._tables.order(target, reason, oid)
        self._tables.order_failed(target)

    def _oid_of(self, target: str) -> int:
        return next(oid for oid, each in self._followed.items() if each.target == target)

    def ask(self) -> None:
        """Ask the daemon how far it is, tell the slot, and let others have a turn."""
        if self._is_time():
            self._asked_at = time.monotonic()
            self._positions.ask()
        self._turns.turn()
        self.confirm()

    def confirm(self) -> None:
        """Tell the slot what is safe."""
        positions = self._positions
        lsn = positions.confirmable(self._turns.hold())
        if lsn > positions.confirmed or self._is_time():
            positions.confirmed = max(positions.confirmed, self._stream.confirm(lsn))
