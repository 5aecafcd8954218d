"""Open transactions: messages of an origin that precede the one that commits them.

Open transactions are in memory only and end with the process. A message that is refused for now
leaves its transaction as it was; an invalid one discards it. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ingester.errors import BadRequest
from ingester.replication.fold import Changes
from persist.manifest.actions import Content
from persist.table import AckLevel, TableDefinition, TableKey

OPEN_AT_ONCE = 2
"""How many transactions of `replication.max_transaction_bytes` fit into memory."""


class TypedMessage(NamedTuple):
    """A message with rows in the types of its table."""

    table: TableKey
    definition: TableDefinition
    """The table's definition, at the latest after the commit."""
    changes: Changes
    nbytes: int
    """The most memory that it may take."""


class StreamIdentity(NamedTuple):
    """The client of a message."""

    origin: str
    transaction: str | None
    """The client's name for the transaction, which separates two clients of one origin."""
    begin: bool
    """Whether the origin's open transaction is discarded first."""
    ours: bool = True
    """False if it depends on what another process had, which may be lost with its log."""
    knows: bool = False
    """Whether it names this process, so it has asked for its progress here."""


class Message(NamedTuple):
    """One message of an origin."""

    identity: StreamIdentity
    commits_as: int | None
    """The transaction's sequence in its last message; None in earlier ones."""
    rows: TypedMessage | None
    """None in a message without rows."""
    table: TableKey | None = None
    """The table that the message names, even without rows."""
    sequence: int | None = None
    """The transaction's sequence if the message has one, also before its last message."""
    content: Content | None = None
    """What the transaction contains, in its last message, if the client says so."""
    ack: AckLevel | None = None
    """The level of acknowledgements that the client asks for; None means the tables'."""


@dataclass(slots=True)
class TableChanges:
    """One table's part of a transaction, in the order of messages."""

    definition: TableDefinition
    messages: list[Changes] = field(default_factory=list)


class OpenTransaction:
    """The messages of an origin since its last transaction. Immutable."""

    __slots__ = ("_all", "_count", "_definitions", "at_store", "name", "nbytes", "sequence")

    def __init__(
        self, name: str | None = None, sequence: int | None = None, *, at_store: bool = False
    ) -> None:
        self.name = name
        self.at_store = at_store
        """Whether it is acknowledged when the store has it."""
        self.sequence = sequence
        """The sequence that a message has announced."""
        # Shared with longer versions of this transaction.
        self._all: list[TypedMessage] = []
        self._count = 0
        self._definitions: dict[TableKey, TableDefinition] = {}
        self.nbytes = 0

    @property
    def messages(self) -> list[TypedMessage]:
        return self._all[: self._count]

    def announced(self, sequence: int | None, at_store: bool) -> OpenTransaction:
        """The transaction with the sequence that a message has, and at least its level.

        Raises:
            BadRequest: an earlier message has another one.
        """
        sequence = self.sequence if sequence is None else sequence
        at_store = at_store or self.at_store
        if (sequence, at_store) == (self.sequence, self.at_store):
            return self
        if self.sequence not in (None, sequence):
            raise BadRequest(
                f"sync: sequence {sequence}, but an earlier message of the transaction has"
                f" {self.sequence}: send the same in all of its messages, or only in the last one"
            )
        same = OpenTransaction(self.name, sequence, at_store=at_store)
        same._all, same._count = self._all, self._count
        same._definitions, same.nbytes = self._definitions, self.nbytes
        return same

    def with_message(self, message: TypedMessage) -> OpenTransaction:
        """A transaction with one more message."""
        longer = OpenTransaction(self.name, self.sequence, at_store=self.at_store)
        # Another version has been extended already: copy the list.
        longer._all = self._all if len(self._all) == self._count else self.messages
        longer._all.append(message)
        longer._count = self._count + 1
        longer._definitions = self._definitions
        if self._definitions.get(message.table) is not message.definition:
            longer._definitions = {**self._definitions, message.table: message.definition}
        longer.nbytes = self.nbytes + message.nbytes
        return longer

    def definition_of(self, table: TableKey) -> TableDefinition | None:
        """The definition that an earlier message gives a table."""
        return self._definitions.get(table)

    def tables(self) -> dict[TableKey, TableChanges]:
        """Each table's changes; sorted, so that all transactions lock tables in the same order."""
        found: dict[TableKey, TableChanges] = {}
        for message in self.messages:
            mine = found.setdefault(message.table, TableChanges(message.definition))
            mine.definition = message.definition
            mine.messages.append(message.changes)
        return dict(sorted(found.items()))


class OpenTransactions:
    """All open transactions, by origin."""

    def __init__(
        self, max_transaction_bytes: int, clock: Callable[[], float], most: int = 1 << 31
    ) -> None:
        """``most`` limits the number of open transactions."""
        self.most = most
        self.nbytes = 0
        self._max_bytes = max_transaction_bytes
        self._clock = clock
        self._open: dict[str, OpenTransaction] = {}
        self._touched: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self, origin: str) -> bool:
        """Whether the origin has an open transaction, or may open one."""
        return origin in self._open or len(self._open) < self.most

    def get(self, origin: str) -> OpenTransaction | None:
        return self._open.get(origin)

    def own(self, identity: StreamIdentity) -> OpenTransaction | None:
        """The open transaction of a message's client."""
        opened = self._open.get(identity.origin)
        return opened if opened is not None and opened.name == identity.transaction else None

    def grown(
        self, origin: str, transaction: OpenTransaction, rows: TypedMessage
    ) -> OpenTransaction | None:
        """The transaction with one more message; None if there is no memory for it now.

        Raises:
            BadRequest: larger than any transaction may be.
        """
        opened = self.get(origin)
        grown = transaction.with_message(rows)
        if grown.nbytes > self._max_bytes:
            raise BadRequest(
                f"origin {origin!r}: its transaction has {grown.nbytes} bytes;"
                f" replication.max_transaction_bytes is {self._max_bytes}: it is refused"
            )
        beside = self.nbytes - (0 if opened is None else opened.nbytes)
        return None if beside + grown.nbytes > OPEN_AT_ONCE * self._max_bytes else grown

    def put(self, origin: str, transaction: OpenTransaction) -> None:
        """Replace the origin's open transaction."""
        self.drop(origin)
        self._open[origin] = transaction
        self._touched[origin] = self._clock()
        self.nbytes += transaction.nbytes

    def drop(self, origin: str) -> bool:
        """Discard an origin's transaction; False if there is none."""
        known = self._open.pop(origin, None)
        self._touched.pop(origin, None)
        if known is not None:
            self.nbytes -= known.nbytes
        return known is not None

    def touch(self, origin: str) -> None:
        """Note a sign of life from the origin's client, even if its message is refused."""
        if origin in self._touched:
            self._touched[origin] = self._clock()

    def idle(self, for_s: float) -> Sequence[str]:
        """Origins whose clients have been silent for that long."""
        before = self._clock() - for_s
        return [origin for origin, touched in self._touched.items() if touched < before]
