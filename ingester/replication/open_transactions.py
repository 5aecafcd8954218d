"""Open transactions: messages of an origin that wait for the one that closes them.

Law of this file: what is open is nobody's yet; it is in memory alone and ends with the process. A
transaction stays as it was where a message is refused for now, and is gone where one is refused for
what it is. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ingester.replication.fold import Changes
from persist.table import TableDefinition, TableKey


class TypedMessage(NamedTuple):
    """A message with rows, in the types of its table."""

    table: TableKey
    definition: TableDefinition
    """That the table has, or will have once the transaction is closed."""
    changes: Changes
    nbytes: int
    """What it counts for in memory, at most."""


class Identity(NamedTuple):
    """Whose a message is."""

    origin: str
    transaction: str | None
    """What its client calls the transaction: two clients of one origin do not mix theirs."""
    begin: bool
    """Whatever the origin has open is forgotten first."""


class Message(NamedTuple):
    """One message of an origin."""

    identity: Identity
    closes: int | None
    """The sequence of the transaction that it is the last message of."""
    rows: TypedMessage | None
    """None where it has no rows."""


@dataclass(slots=True)
class TableChanges:
    """One table's share of a transaction, in the order of its messages."""

    definition: TableDefinition
    messages: list[Changes] = field(default_factory=list)


class OpenTransaction:
    """What an origin has sent since its last transaction. Never changed: followed by another."""

    __slots__ = ("_all", "_count", "_definitions", "name", "nbytes")

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        """What its client calls it."""
        # Shared with those that follow, which have more of it.
        self._all: list[TypedMessage] = []
        self._count = 0
        self._definitions: dict[TableKey, TableDefinition] = {}
        self.nbytes = 0

    @property
    def messages(self) -> list[TypedMessage]:
        """In their order."""
        return self._all[: self._count]

    def with_message(self, message: TypedMessage) -> OpenTransaction:
        """The transaction with one message more."""
        longer = OpenTransaction(self.name)
        # One that was followed already begins a list of its own.
        longer._all = self._all if len(self._all) == self._count else self.messages
        longer._all.append(message)
        longer._count = self._count + 1
        longer._definitions = self._definitions
        if self._definitions.get(message.table) is not message.definition:
            longer._definitions = {**self._definitions, message.table: message.definition}
        longer.nbytes = self.nbytes + message.nbytes
        return longer

    def definition_of(self, table: TableKey) -> TableDefinition | None:
        """What an earlier message would make of a table; None where none has changed it."""
        return self._definitions.get(table)

    def tables(self) -> dict[TableKey, TableChanges]:
        """What there is of each table; sorted, so that whoever waits for several does so in one
        order."""
        found: dict[TableKey, TableChanges] = {}
        for message in self.messages:
            mine = found.setdefault(message.table, TableChanges(message.definition))
            mine.definition = message.definition
            mine.messages.append(message.changes)
        return dict(sorted(found.items()))


class OpenTransactions:
    """All of them, by origin."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._open: dict[str, OpenTransaction] = {}
        self._touched: dict[str, float] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def get(self, origin: str) -> OpenTransaction | None:
        """The origin's, if it has one."""
        return self._open.get(origin)

    def own(self, identity: Identity) -> OpenTransaction | None:
        """What the client of a message has open."""
        opened = self._open.get(identity.origin)
        return opened if opened is not None and opened.name == identity.transaction else None

    def put(self, origin: str, transaction: OpenTransaction) -> None:
        """Take the place of what the origin had open."""
        self.drop(origin)
        self._open[origin] = transaction
        self._touched[origin] = self._clock()
        self.nbytes += transaction.nbytes

    def drop(self, origin: str) -> bool:
        """Forget it; whether there was one."""
        known = self._open.pop(origin, None)
        self._touched.pop(origin, None)
        if known is not None:
            self.nbytes -= known.nbytes
        return known is not None

    def touch(self, origin: str) -> None:
        """Its client is there, also where its messages are refused for now."""
        if origin in self._touched:
            self._touched[origin] = self._clock()

    def idle(self, for_s: float) -> Sequence[str]:
        """Who has one and has not gone on with it for so long."""
        before = self._clock() - for_s
        return [origin for origin, touched in self._touched.items() if touched < before]
