"""The replicator: from the source to the daemon, over restarts of both, each change once.

    ask where the origin stands ─▶ copy, if that is not done ─▶ stream from the slot
            ▲                                                       │ what it has is left out
            └──── a connection is lost, or the daemon is a new one ─┘

Law of this file: a transaction's sequence is its end in the source's log. The slot is advanced to
the origin's durable sequence, so that whatever the daemon may lose is still there to be read (and,
by the source's client library, past what concerns no table when all before that is durable).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from ingester.client import Client, TimedOut, Unavailable, UnknownOutcome, Unreachable
from ingester.client.sync_stream import SyncAnswer, SyncStream
from ingester.postgres.collector import Collector, Shape, SyncMessage
from ingester.postgres.initial_copy import copied
from ingester.postgres.pgoutput import Begin, Change, Commit, Message, Relation, Truncate
from ingester.postgres.source import (
    NoKey,
    Slot,
    Source,
    SourceFailed,
    SourceTable,
    keys_of,
    shape_of,
    table_name,
)

SEND_BYTES = 8 << 20
SEND_CHANGES = 50_000
"""Transactions are sent together until they have so much, or the source has no more for now."""
IDLE_S = 0.2
ASK_EVERY_S = 1.0
FIRST_LSN = 1 << 20
"""Positions in a log are higher; sequences of a copy, but for its last one, are lower."""
PASSING = (Unreachable, TimedOut, Unavailable, UnknownOutcome)


Keys = dict[tuple[str, str], tuple[str, ...]]


class Restarted(Exception):
    """The daemon is not the one that took the messages before."""


class Progress(NamedTuple):
    """The progress since the start; positions are of the source's log."""

    changes: int
    transactions: int
    sent: int | None
    durable: int | None


@dataclass
class Plan:
    """The plan of a replication: what goes from where to where."""

    dsn: str
    namespace: str
    tables: list[str] = field(default_factory=list)
    """The tables of the publication, if it has to be made; all where none is named."""
    publication: str = "ingester"
    slot: str = "ingester"
    origin: str = "postgres"


class Replicator:
    """Runs until it is told to stop.

    Args:
        say: told what happens, in a line.
        stopped: asked whether to end, several times a second.
    """

    def __init__(
        self,
        plan: Plan,
        client: Client,
        *,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.progress = Progress(0, 0, None, None)
        self._plan = plan
        self._client = client
        self._stream: SyncStream = client.sync(plan.namespace, plan.origin)
        self._say = say
        self._stopped = stopped
        self._random = Random()
        self._changes = self._transactions = 0
        self._sent: int | None = None
        self._tried: int | None = None
        """The highest sequence of the origin that any daemon can have."""
        self._singly_upto = -1
        self._durable: int | None = None
        self._asked_at = 0.0
        self._shapes: dict[int, Shape] = {}

    def run(self) -> None:
        """Replicate until stopped.

        Raises:
            SourceFailed, NoKey, ValueNotKept: the source has to be changed first.
            ClientError: the daemon refuses what no retry helps.
        """
        import psycopg2

        failures = 0
        while not self._stopped():
            try:
                self._session()
                return
            except Restarted:
                self._say("the daemon has restarted: going on from where it stands")
                failures = 0
            except (*PASSING, psycopg2.OperationalError) as exc:
                failures += 1
                self._say(f"trying again: {' '.join(str(exc).split())}")
                self._pause(min(5.0, 0.2 * 2 ** min(failures, 5)) * self._random.uniform(0.5, 1.0))

    def _session(self) -> None:
        plan = self._plan
        source = Source(plan.dsn, plan.publication, plan.slot)
        try:
            source.publish(plan.tables)
            tables = source.tables()
            for table in tables:
                if not table.key:
                    raise NoKey(f"table {table_name(table.relation)} has no primary key")
            standing = self._stream.standing()
            slot = source.slot()
            known = standing.memory_sequence or 0
            if known > source.newest_lsn() or (slot.snapshot and known >= FIRST_LSN):
                raise SourceFailed(
                    f"origin {plan.origin!r} has followed another slot or server; copy these tables"
                    " under another --origin"
                )
            if slot.snapshot is None and known < FIRST_LSN:
                self._say("the first copy was not finished, or is lost: copying again")
                source.drop_slot()
                slot = source.slot()
            if slot.snapshot is not None:
                self._copy(source, tables, slot, standing)
                standing = self._stream.standing()
            self._follow(source, tables, standing)
        finally:
            source.close()

    # The first copy

    def _copy(
        self, source: Source, tables: list[SourceTable], slot: Slot, standing: SyncAnswer
    ) -> None:
        """Copy the tables under sequences below any log position; the last one is the slot's."""
        assert slot.snapshot is not None
        sequence = (standing.memory_sequence or 0) + 1
        waiting: SyncMessage | None = None
        rows = 0
        namespace = self._plan.namespace
        for message in copied(source, tables, slot.snapshot, self._client, namespace):
            if waiting is not None:
                self._close([waiting], sequence)
                sequence += 1
            waiting = message
            rows += message.batch.num_rows
        if waiting is not None:
            self._close([waiting], slot.confirmed_lsn)
        self._say(f"copied {rows} rows of {len(tables)} tables")

    # The stream

    def _follow(self, source: Source, tables: list[SourceTable], standing: SyncAnswer) -> None:
        """Send what comes after that which the daemon has."""
        keys = keys_of(tables)
        upto = standing.memory_sequence or -1
        # A daemon that may have lost its log may have some of these in files of some tables. They
        # were sent in groups that nobody knows; what is sent singly is judged right.
        if self._tried is None:
            self._tried = source.newest_lsn()
        if upto == standing.durable_sequence:
            self._singly_upto = self._tried
        self._shapes.clear()
        collector = Collector(self._shapes)
        part: list[Message] = []
        source.start()
        while not self._stopped():
            if collector.upto is not None and collector.upto <= self._singly_upto:
                self._send(source, collector)
            waiting = collector.upto is not None
            message = source.read(0.0 if waiting else IDLE_S)
            if isinstance(message, Relation):
                self._learn(source, message, keys)
                part.append(message)
            elif isinstance(message, Commit):
                self._gather(collector, keys, part, message.end_lsn > upto)
                if message.end_lsn > upto:
                    collector.commit(message.end_lsn)
                    self._transactions += 1
                part = []
            elif message is not None and not isinstance(message, Begin):
                part.append(message)
            if waiting and (message is None or _is_much(collector)) and not part:
                self._send(source, collector)
            elif message is None:
                self._ask(source)

    def _gather(self, collector: Collector, keys: Keys, part: list[Message], wanted: bool) -> None:
        for each in part:
            if isinstance(each, Relation):
                # A table that is gone by now was there when it changed.
                key = keys.get((each.schema, each.name)) or each.key
                if not key:
                    raise NoKey(f"table {table_name(each)} has no primary key")
                self._shapes[each.oid] = shape_of(each, key)
                collector.relation(each)
            elif not wanted:
                continue
            elif isinstance(each, Change):
                collector.add(each)
            elif isinstance(each, Truncate):
                names = ", ".join(self._shapes[oid].target for oid in each.relations)
                raise NoKey(f"TRUNCATE of {names} cannot be followed: drop the slot to copy again")

    def _learn(self, source: Source, relation: Relation, keys: Keys) -> None:
        """Learn the keys anew: a table may have come after the start."""
        if (relation.schema, relation.name) not in keys:
            keys.update(keys_of(source.tables()))

    def _send(self, source: Source, collector: Collector) -> None:
        upto, changes = collector.upto, collector.changes
        assert upto is not None
        messages = [each for each in collector.take() if isinstance(each, SyncMessage)]
        if messages:
            self._close(messages, upto)
            self._changes += changes
        self._advance(source, reply=False)

    def _close(self, messages: list[SyncMessage], sequence: int) -> None:
        """Send messages as one transaction."""
        last = len(messages) - 1
        self._tried = max(sequence, self._tried or 0)
        answer: SyncAnswer | None = None
        for number, (table, columns, batch) in enumerate(messages):
            answer = self._stream.send(
                table,
                columns,
                batch,
                begin=number == 0,
                sequence=sequence if number == last else None,
            )
            if answer.first:
                raise Restarted
            if answer.duplicate:
                raise SourceFailed(
                    f"the daemon has sequence {sequence} of origin {self._plan.origin!r} already,"
                    " from elsewhere; name another --origin"
                )
        assert answer is not None, "a transaction has a message"
        self._sent = sequence
        self._note(answer)

    def _ask(self, source: Source) -> None:
        now = time.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            answer = self._stream.standing()
            if answer.first:
                raise Restarted
            self._asked_at = now
            self._note(answer)
            self._advance(source, reply=True)

    def _advance(self, source: Source, *, reply: bool) -> None:
        if self._durable is not None:
            source.advance(self._durable, reply=reply)

    def _note(self, answer: SyncAnswer) -> None:
        self._durable = answer.durable_sequence
        self.progress = Progress(self._changes, self._transactions, self._sent, self._durable)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.1, left))


def _is_much(collector: Collector) -> bool:
    return collector.nbytes >= SEND_BYTES or collector.changes >= SEND_CHANGES
