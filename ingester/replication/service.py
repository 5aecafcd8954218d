"""The replication stream: messages of origins become transactions, each applied once.

    message ─▶ open transaction of its origin ─ a message with the sequence ─▶ commit ─▶ answer

Messages of one origin are processed one at a time; origins do not wait for each other. A retryable
refusal changes nothing: the same message may be sent again. A table that has the transaction's
sequence, in buffers or files, skips it; the others apply it. A transaction is acknowledged at the
highest level of its tables and messages. Loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import trio

from ingester.config.settings import Level
from ingester.errors import (
    BadRequest,
    LimitReached,
    MemoryFull,
    Refused,
    ReplacedByCopy,
    Superseded,
    UnknownTable,
    limit_facts,
)
from ingester.replication.commit import TransactionCommit
from ingester.replication.messages import SyncLayout, no_changes
from ingester.replication.open_transactions import (
    Message,
    OpenTransaction,
    OpenTransactions,
    StreamIdentity,
    TableChanges,
    TypedMessage,
)
from ingester.schema.definition import widened
from ingester.tables.catalog import Catalog
from ingester.tables.origin_lookup import KnownOrigins
from ingester.write.admission import AdmissionControl
from ingester.write.dedup import behind_the_store
from persist.table import TableDefinition, TableKey

IDLE_S = 60.0
"""The time after which an idle transaction may be discarded to make room."""


class OriginProgress(NamedTuple):
    """An origin's progress, as answers report it."""

    sequence: int
    duplicate: bool
    memory_sequence: int | None
    durable_sequence: int | None
    files_sequence: int | None
    first: bool
    compared: bool = False
    """Whether a duplicate is known to contain the same as the first copy."""
    ack: Level | msgspec.UnsetType = msgspec.UNSET
    """The level of an acknowledged transaction; unset if the message closes none."""


class ReplicationStatistics(NamedTuple):
    """Counts of transactions."""

    open_transactions: int
    open_bytes: int
    committing: int


class Replication:
    """Takes messages. Loop only."""

    def __init__(
        self,
        catalog: Catalog,
        known: KnownOrigins,
        admission: AdmissionControl,
        commit: TransactionCommit,
        open_transactions: OpenTransactions,
    ) -> None:
        self._catalog = catalog
        self._known = known
        self._origins = known.origins
        self._admission = admission
        self._commit = commit
        self._open = open_transactions
        self._committing = 0
        self._interrupted: set[str] = set()
        """Origins whose open transaction was lost with the previous process, or discarded."""
        self._heard: set[str] | None = None
        """The origins that have begun again, if the log of the previous process was lost."""
        self._logged_open: dict[str, bool] = {}
        """Origins with an open transaction according to the log, and whether the store has it."""
        self._locks: dict[str, trio.Lock] = {}

    def statistics(self) -> ReplicationStatistics:
        return ReplicationStatistics(len(self._open), self._open.nbytes, self._committing)

    def note_interrupted(self, origins: Iterable[str]) -> None:
        """Note origins whose transactions were open at the end of the log."""
        self._interrupted.update(origins)

    def note_lost(self) -> None:
        """Note that the log was lost: any origin may have had an open transaction."""
        self._heard = set()

    def carried(self) -> list[str]:
        """Origins with an open transaction, which a new segment must repeat."""
        return sorted(self._logged_open.keys() | self._interrupted)

    async def plan(
        self, identity: StreamIdentity, table: TableKey, layout: SyncLayout
    ) -> TableDefinition:
        """The definition to which a message's changes must be converted.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable
            NotAvailable: the table has transformers.
        """
        self._check_not_stopping()
        opened = None if identity.begin else self._open.own(identity)
        earlier = None if opened is None else opened.definition_of(table)
        if earlier is not None:
            return widened(earlier, layout.schema)
        definition = await self._catalog.draft_keyed(*table, layout.schema, layout.key)
        self._commit.check_plain(table, definition)
        return definition

    async def take(self, message: Message) -> OriginProgress:
        """Take a message. If it closes a transaction, that is durable and visible on return.

        Raises:
            BadRequest: invalid message; its transaction is discarded.
            ReplacedByCopy: a copy has replaced one of its tables; its transaction is discarded.
            Refused: retryable; nothing has changed except for ``begin``.
        """
        self._check_not_stopping()
        origin = message.identity.origin
        self._origins.check_room(origin)
        async with self._one_at_a_time(origin):
            if not self._origins.get(origin).answered:
                # The manifests' sequences count from the origin's first message.
                await self._known.find(origin)
            self._open.touch(origin)
            self._check_ours(message)
            self._check_interrupted(message)
            if message.identity.begin:
                self._drop(origin)
            repeats = not message.identity.begin and self._repeats_a_commit(message)
            try:
                at_store = await self._at_store(message)
                if repeats:
                    return await self._repeated(message, at_store)
                return await self._take(message, at_store)
            except ReplacedByCopy:
                self._drop(origin)
                raise
            except Refused:
                raise
            except BaseException:
                self._drop(origin)
                raise

    async def give_up(self, identity: StreamIdentity) -> None:
        """Discard an origin's open transaction after an invalid message."""
        async with self._one_at_a_time(identity.origin):
            if identity.begin or self._open.own(identity) is not None:
                self._drop(identity.origin)

    async def stand(self, origin: str) -> OriginProgress:
        """An origin's progress, even if there is no room for it."""
        if self._origins.find(origin) is None:
            return OriginProgress(self._commit.upto_in(()), False, None, None, None, True)
        return self._standing(origin)

    def drop_idle(self) -> None:
        """Discard idle transactions; their clients must send them again."""
        for origin in self._open.idle(IDLE_S):
            lock = self._locks.get(origin)
            if lock is None or not lock.locked():  # a message of it is in progress
                self._drop(origin)
                self._interrupted.add(origin)

    def _repeats_a_commit(self, message: Message) -> bool:
        """Whether a message's transaction is closed because it was committed before.

        Raises:
            Superseded: another client of the origin has ended it.
        """
        origin, name = message.identity.origin, message.identity.transaction
        asks = message.rows is None and message.commits_as is None
        opens = name is None and self._open.get(origin) is None
        if asks or opens or self._open.own(message.identity) is not None:
            return False
        if message.commits_as is not None and self._is_applied(origin, message.commits_as):
            return True
        raise Superseded(
            f"origin {origin!r} has no transaction {name!r} open: another client"
            " of the origin has begun or closed one; begin again"
        )

    async def _at_store(self, message: Message) -> bool:
        """Whether a message's table, or its client, has the level ``store``.

        Raises:
            BadRequest: the client asks for less than its table has.
        """
        changes = message.identity.begin or message.rows or message.commits_as is not None
        if message.table is None or not changes:
            return False
        if message.rows is not None:
            own = message.rows.definition.ack
        else:
            table = await self._catalog.find(*message.table)
            own = None if table is None else table.definition.ack
        return self._commit.levels.at_store(message.table, own, message.ack)

    async def _repeated(self, message: Message, at_store: bool) -> OriginProgress:
        """The answer to a commit that is repeated without its rows."""
        origin = message.identity.origin
        ack = await self._await_level(self._origins.get(origin).tables, at_store)
        return self._standing(origin, duplicate=True)._replace(ack=ack)

    async def _await_level(self, tables: Collection[TableKey], at_store: bool) -> Level:
        """Return the level at which these tables have what is applied, after waiting for it."""
        known = [table for key in tables if (table := self._catalog.known(*key)) is not None]
        routes = [table.route for table in known]
        if at_store:
            await self._commit.await_store(routes)
        return "disk" if behind_the_store(routes) else "store"

    async def _take(self, message: Message, at_store: bool) -> OriginProgress:
        origin, begin = message.identity.origin, message.identity.begin
        sequence = message.commits_as
        opened = self._open.get(origin)
        grown = opened or OpenTransaction(message.identity.transaction)
        grown = grown.announced(message.sequence, at_store)
        if message.rows is not None:
            grown = self._grown(origin, grown, message.rows)
        if sequence is None:
            if message.rows is not None or begin:
                self._check_open(origin)
                await self._log_open(origin, grown.at_store)
                self._put(origin, grown)
            return self._standing(origin)
        if message.rows is None and opened is None and not begin:
            # The client repeats a commit without an answer.
            if not self._is_applied(origin, sequence):
                raise BadRequest(
                    f"origin {origin!r} has no open transaction to close as {sequence}"
                )
            return await self._repeated(message, at_store)
        self._check_not_stopping()  # the daemon may be stopping by now
        tables = grown.tables() or await self._without_rows(origin, message.table)
        self._committing += 1
        try:
            done = await self._commit.commit(
                tables, origin, sequence, message.content, at_store=grown.at_store
            )
            # A table that had the transaction already may have it on the disk only.
            ack = await self._await_level(tables, grown.at_store)
        finally:
            self._committing -= 1
        if done is not None:
            self._logged_open.pop(origin, None)
        self._drop(origin)
        if done is None:
            standing = self._standing(origin, duplicate=bool(tables))
            known = [self._origins.table(origin, key).content(sequence) for key in tables]
            compared = standing.duplicate and message.content is not None and None not in known
            return standing._replace(compared=compared, ack=ack if tables else msgspec.UNSET)
        # The rows of a transaction whose files survived a lost log are left out.
        left_out = bool(grown.messages) and not any(each.rows for each in done.operations)
        return self._standing(origin, done.last_seq, duplicate=left_out)._replace(ack=ack)

    async def _without_rows(
        self, origin: str, named: TableKey | None
    ) -> dict[TableKey, TableChanges]:
        """The table that records the sequence of a transaction without rows.

        It is the named one, or one of the namespace that the origin has written to. Without any
        there is nothing that the sequence could come after.
        """
        if named is None:
            return {}
        written = (key for key in self._origins.get(origin).tables if key[0] == named[0])
        for key in (named, *sorted(written)):
            try:
                table = await self._catalog.find(*key)
            except UnknownTable:
                continue
            if table is not None and self._commit.records(key, table.definition):
                definition = table.definition
                return {key: TableChanges(definition, [no_changes(definition)])}
        return {}

    def _grown(
        self, origin: str, transaction: OpenTransaction, rows: TypedMessage
    ) -> OpenTransaction:
        """The origin's transaction with a message's rows, if admitted."""
        self._admission.check(rows.nbytes, rows.table[0])
        grown = self._open.grown(origin, transaction, rows)
        if grown is None:
            self.drop_idle()
            raise MemoryFull(
                f"replication: {self._open.nbytes} bytes of open transactions await their commit",
                retry_after_s=1.0,
            )
        return grown

    def _check_open(self, origin: str) -> None:
        """Raise :class:`LimitReached` if no further transaction may be opened."""
        if not self._open.has_room(origin):
            self.drop_idle()
        if not self._open.has_room(origin):
            most = self._open.most
            raise LimitReached(
                f"replication: {len(self._open)} transactions are open; limits.transactions is"
                f" {most}",
                retry_after_s=1.0,
                details=limit_facts("limits.transactions", most, len(self._open) + 1),
            )

    def _check_ours(self, message: Message) -> None:
        """Refuse a message that depends on another process of the daemon.

        Raises:
            Refused: the client must ask for the origin's progress and continue from there.
        """
        origin, ours = message.identity.origin, message.identity.ours
        if ours or (message.rows is None and message.commits_as is None):
            return
        # Makes the next answer say ``first``, even if somebody else has asked meanwhile.
        self._origins.get(origin).answered = False
        raise Refused(
            f"origin {origin!r} depends on another process of the daemon, whose disk may be lost:"
            " ask for the origin's progress, and continue from there",
            retry_after_s=0.0,
        )

    def _check_interrupted(self, message: Message) -> None:
        """Refuse, once, the rest of a transaction whose first part is lost.

        A ``begin`` is accepted. A question for progress is answered with ``first`` each time, as an
        answer may be lost.

        Raises:
            Refused: the transaction must be sent again from its first message.
        """
        origin, begin = message.identity.origin, message.identity.begin
        if self._heard is not None and (begin or message.identity.knows):
            self._heard.add(origin)
        if begin:
            self._interrupted.discard(origin)
        lost = self._heard is not None and origin not in self._heard
        if not lost and origin not in self._interrupted:
            return
        # Makes the answer say ``first``: repeated, this message alone would be the transaction.
        self._origins.get(origin).answered = False
        if message.rows or message.commits_as is not None:
            self._interrupted.discard(origin)
            if self._heard is not None:
                self._heard.add(origin)
            raise Refused(
                f"the open transaction of origin {origin!r} was lost with the process, or discarded"
                " to make room: send it again from its first message",
                retry_after_s=0.0,
            )

    async def _log_open(self, origin: str, at_store: bool) -> None:
        """Log that the origin has an open transaction, unless the log says so."""
        logged = self._logged_open.get(origin)
        if logged is None or at_store > logged:
            self._logged_open[origin] = at_store
            try:
                await self._commit.note_open(self.carried(), at_store=at_store)
            except BaseException:
                self._logged_open.pop(origin)
                raise

    def _is_applied(self, origin: str, sequence: int) -> bool:
        memory = self._origins.get(origin).memory_sequence
        return memory is not None and sequence <= memory

    def _standing(
        self, name: str, sequence: int | None = None, *, duplicate: bool = False
    ) -> OriginProgress:
        origin = self._origins.get(name)
        first, origin.answered = not origin.answered, True
        return OriginProgress(
            sequence=self._commit.upto_in(origin.tables) if sequence is None else sequence,
            duplicate=duplicate,
            memory_sequence=origin.memory_sequence,
            durable_sequence=origin.durable_sequence,
            files_sequence=origin.files_sequence,
            first=first,
        )

    def _put(self, origin: str, transaction: OpenTransaction) -> None:
        if self._open.get(origin) is None:
            self._origins.get(origin).open_streams += 1
        self._open.put(origin, transaction)

    def _drop(self, origin: str) -> None:
        if self._open.drop(origin):
            self._origins.get(origin).open_streams -= 1

    def _check_not_stopping(self) -> None:
        if self._admission.stopping:
            raise self._admission.refusal()

    @asynccontextmanager
    async def _one_at_a_time(self, origin: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(origin, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # otherwise a waiter holds it by now
                self._locks.pop(origin, None)
