"""The replication stream: messages of origins become transactions, each of them applied once.

    message ─▶ open transaction of its origin ─ closed by a sequence ─▶ judged per table ─▶ logged

Law of this file: messages of one origin take turns; origins do not wait for each other. What is
refused for now changes nothing: the same message may come again. A transaction is a duplicate in
every table that has its sequence already, in buffers or files, and applied in the others. Loop
only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from ingester.dml.operation import Transaction
from ingester.errors import InvalidRequest, MemoryFull, Refused, Stopping, Superseded
from ingester.origins.registry import Origins
from ingester.replication.commit import TransactionCommit
from ingester.replication.dedup import TransactionDedup
from ingester.replication.messages import SyncLayout
from ingester.replication.open_transactions import (
    Identity,
    Message,
    OpenTransaction,
    OpenTransactions,
)
from ingester.schema.definition import widened
from ingester.tables.catalog import Catalog
from ingester.tables.origin_lookup import KnownOrigins
from ingester.tables.origin_takeover import Ownership
from ingester.write.admission import AdmissionGate
from persist.table import TableDefinition, TableKey

OPEN_AT_ONCE = 2
"""Times `replication.max_transaction_bytes` that all open transactions may have together."""
IDLE_S = 60.0
"""After which an open transaction is dropped, if others need the room."""


class Standing(NamedTuple):
    """What an origin is told."""

    sequence: int
    duplicate: bool
    memory_sequence: int | None
    durable_sequence: int | None
    first: bool


class Replication:
    """Takes messages. Loop only."""

    def __init__(
        self,
        catalog: Catalog,
        ownership: Ownership,
        known: KnownOrigins,
        gate: AdmissionGate,
        closing: TransactionCommit,
        *,
        max_transaction_bytes: int,
    ) -> None:
        self.stopping = False
        self.closing = 0
        """Transactions that are being closed."""
        self.on_logged: Callable[[Transaction], None] = lambda transaction: None
        self.open = OpenTransactions(trio.current_time)
        self._catalog = catalog
        self._judge = TransactionDedup(catalog, ownership)
        self._origins: Origins = ownership.origins
        self._known = known
        self._gate = gate
        self._closing = closing
        self._max_bytes = max_transaction_bytes
        self.interrupted: set[str] = set()
        """Origins that had a transaction open when the process before this one ended."""
        self._marked: set[str] = set()
        """Of whom the log says that they have one."""
        self._turns: dict[str, trio.Lock] = {}

    async def plan(
        self, identity: Identity, table: TableKey, layout: SyncLayout
    ) -> TableDefinition:
        """The definition that a message's changes have to be brought to.

        Raises:
            InvalidRequest, UnknownTable, StoreAway
        """
        self._check_open()
        opened = None if identity.begin else self.open.own(identity)
        earlier = None if opened is None else opened.definition_of(table)
        if earlier is not None:
            return widened(earlier, layout.schema)
        return await self._catalog.draft_keyed(*table, layout.schema, layout.key)

    async def take(self, message: Message) -> Standing:
        """Take a message; the transaction that it closes is durable and visible then.

        Raises:
            InvalidRequest: it, or the transaction, is no good; the transaction is gone.
            Refused: not now; nothing has changed, but that ``begin`` was done.
        """
        self._check_open()
        origin = message.identity.origin
        async with self._turn(origin):
            await self._meet(origin)
            self.open.touch(origin)
            self._tell_interrupted(message)
            if message.identity.begin:
                self._drop(origin)
            elif self._repeats_the_end(message):
                return self._standing(origin, duplicate=True)
            try:
                return await self._take(message)
            except Refused:
                raise
            except BaseException:
                self._drop(origin)
                raise

    def marked(self) -> list[str]:
        """For the head of a new segment of the log."""
        return sorted(self._marked | self.interrupted)

    async def give_up(self, identity: Identity) -> None:
        """Forget what an origin has open: a message of it was no good."""
        async with self._turn(identity.origin):
            if identity.begin or self.open.own(identity) is not None:
                self._drop(identity.origin)

    async def stand(self, origin: str) -> Standing:
        """Where an origin stands."""
        return self._standing(origin)

    def _repeats_the_end(self, message: Message) -> bool:
        """Whether its transaction is not open, because it was closed before, by this message.

        Raises:
            Superseded: what stood before it has gone, for another client of the origin.
        """
        origin, name, _ = message.identity
        asks = message.rows is None and message.closes is None
        opens = name is None and self.open.get(origin) is None
        if asks or opens or self.open.own(message.identity) is not None:
            return False
        memory = self._origins.get(origin).memory_sequence
        if message.closes is not None and memory is not None and message.closes <= memory:
            return True
        raise Superseded(
            f"origin {origin!r} has no transaction {name!r} open: another client"
            " of the origin has begun one, or closed it; begin anew"
        )

    async def _take(self, message: Message) -> Standing:
        origin, _, begin = message.identity
        opened = self.open.get(origin)
        with_rows = self._grown(opened, message)
        if message.closes is None:
            if message.rows is not None or begin:
                await self._mark(origin)
                self._put(origin, with_rows)
            return self._standing(origin)
        if message.rows is None and opened is None and not begin:
            return self._closed_before(origin, message.closes)
        self._check_open()  # the daemon may have begun to stop since
        self.closing += 1
        try:
            sequence, duplicate = await self._close(origin, message.closes, with_rows)
        finally:
            self.closing -= 1
        self._drop(origin)
        return self._standing(origin, sequence, duplicate=duplicate)

    def _grown(self, opened: OpenTransaction | None, message: Message) -> OpenTransaction:
        identity = message.identity
        grown = opened or OpenTransaction(identity.transaction)
        if message.rows is None:
            return grown
        reasons = self._gate.reasons(message.rows.nbytes)
        if reasons:
            raise reasons[0]
        grown = grown.with_message(message.rows)
        if grown.nbytes > self._max_bytes:
            raise InvalidRequest(
                f"origin {identity.origin!r}: its transaction has {grown.nbytes} bytes;"
                f" replication.max_transaction_bytes is {self._max_bytes}: all of it is refused"
            )
        beside = self.open.nbytes - (0 if opened is None else opened.nbytes)
        if beside + grown.nbytes > OPEN_AT_ONCE * self._max_bytes:
            self.drop_idle()
            raise MemoryFull(
                f"replication: {self.open.nbytes} bytes of open transactions wait to be closed",
                retry_after_s=1.0,
            )
        return grown

    def drop_idle(self) -> None:
        """Make room: those that nobody goes on with have to be sent again."""
        for origin in self.open.idle(IDLE_S):
            turn = self._turns.get(origin)
            if turn is None or not turn.locked():  # else a message of it is being taken
                self._drop(origin)
                self.interrupted.add(origin)

    def _tell_interrupted(self, message: Message) -> None:
        """The first part of a transaction has gone with the process: the rest is not all of it.

        Refused once, to whoever does not begin anew. Who asks where we stand is told ``first``, as
        often as they ask: an answer may be lost.

        Raises:
            Refused: to be sent again from its first message on.
        """
        origin, _, begin = message.identity
        if begin:
            self.interrupted.discard(origin)
        if origin not in self.interrupted:
            return
        # So that the answer says ``first``: sent again, this message alone would be all of it.
        self._origins.get(origin).answered = False
        if message.rows or message.closes is not None:
            self.interrupted.discard(origin)
            raise Refused(
                f"origin {origin!r} had a transaction open that is gone, with the process"
                " or for want of room: it has to be sent again from its first message on",
                retry_after_s=0.0,
            )

    async def _mark(self, origin: str) -> None:
        """The log says that the origin has a transaction open, until it says what that was."""
        if origin not in self._marked:
            self._marked.add(origin)
            try:
                await self._closing.note_open(self.marked())
            except BaseException:
                self._marked.discard(origin)
                raise

    def _closed_before(self, origin: str, sequence: int) -> Standing:
        """The client repeats the end of a transaction whose answer it has not got."""
        memory = self._origins.get(origin).memory_sequence
        if memory is None or sequence > memory:
            raise InvalidRequest(f"origin {origin!r} has nothing open to close as {sequence}")
        return self._standing(origin, duplicate=True)

    async def _close(
        self, origin: str, sequence: int, transaction: OpenTransaction
    ) -> tuple[int | None, bool]:
        """The daemon's own sequence of it, and whether all of it was here before."""
        tables = transaction.tables()
        left = [
            found
            for key, mine in tables.items()
            if (found := await self._judge.new_in(key, mine, origin, sequence)) is not None
        ]
        if not left:
            return None, bool(tables)
        done = await self._closing.log(
            left,
            (origin, sequence),
            begin=lambda: self._judge.begin(left, origin, sequence),
            end=lambda error: self._judge.end(left, origin, sequence, error),
        )
        self._marked.discard(origin)
        self.on_logged(done)
        return done.last_seq, False

    async def _meet(self, origin: str) -> None:
        """What the manifests say of an origin counts from its first message on."""
        if not self._origins.get(origin).answered:
            await self._known.find(origin)

    def _standing(
        self, name: str, sequence: int | None = None, *, duplicate: bool = False
    ) -> Standing:
        origin = self._origins.get(name)
        first, origin.answered = not origin.answered, True
        return Standing(
            sequence=self._closing.newest_seq if sequence is None else sequence,
            duplicate=duplicate,
            memory_sequence=origin.memory_sequence,
            durable_sequence=origin.durable_sequence,
            first=first,
        )

    def _put(self, origin: str, transaction: OpenTransaction) -> None:
        if self.open.get(origin) is None:
            self._origins.get(origin).open_streams += 1
        self.open.put(origin, transaction)

    def _drop(self, origin: str) -> None:
        if self.open.drop(origin):
            self._origins.get(origin).open_streams -= 1

    def _check_open(self) -> None:
        if self.stopping:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)

    @asynccontextmanager
    async def _turn(self, origin: str) -> AsyncIterator[None]:
        async with self._turns.setdefault(origin, trio.Lock()):
            yield
