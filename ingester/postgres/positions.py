"""How far the changes are: read, sent, and in object storage.

    read_upto    all up to here was read, and what is wanted of it sent
    main         the origin of all tables, in the order of the log
    catch_up     an origin of each table that was copied, until it is where the others are
    bound        what a start will find to be safe: the slot is never told more

Law of this file: the slot is told of what is in object storage alone. ``bound`` is known after the
loss of this process, and of the daemon's disk: it is how a slot is told from another of its name.
All of a session counts on one process of the daemon: another one may have lost what that had.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingester.client import Client, Restarted
from ingester.client.sync_stream import SyncAnswer, SyncStream
from ingester.postgres.slot import FoundSlot


@dataclass
class Sent:
    """One origin of ours: its stream, and how far the daemon has it."""

    stream: SyncStream
    memory: int = -1
    durable: int = -1

    def ask(self) -> None:
        """Ask the daemon.

        Raises:
            ClientError: it does not answer.
            Restarted: it is another one.
        """
        before, answer = self.stream.epoch, self.stream.standing()
        if before not in (None, answer.epoch):
            raise Restarted("the daemon has restarted")
        self.note(answer)

    def note(self, answer: SyncAnswer) -> None:
        """Take note of what an answer says."""
        if answer.memory_sequence is not None:
            self.memory = answer.memory_sequence
        if answer.durable_sequence is not None:
            self.durable = answer.durable_sequence

    @property
    def waits(self) -> bool:
        """Whether something of it is not in object storage."""
        return self.memory > self.durable


@dataclass
class Positions:
    """The positions of one session."""

    main: Sent
    ahead: int
    """The origin of all tables has had transactions up to here before the session began."""
    read_upto: int
    """The stream was read up to here; at first it is where the stream begins."""
    bound: int
    """What the states say to be safe."""
    process: tuple[str, int | None] = ("", None)
    """The daemon, and the epoch of its process, that all of this counts on; streams may know of
    another."""
    committed_at: float = 0.0
    """The time of the last transaction that was read."""
    changes: int = 0
    transactions: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Changes of rows that were sent of each table."""
    confirmed: int = field(default=0)
    catch_up: dict[str, Sent] = field(default_factory=dict)
    """By table: of two that were copied one after the other, the later one may lack less, and the
    sequences of one origin only grow."""

    @classmethod
    def begin(cls, client: Client, namespace: str, origin: str, slot: FoundSlot) -> Positions:
        """Ask the daemon how far both origins are.

        Raises:
            ClientError: it does not answer.
        """
        main = Sent(client.sync(namespace, origin))
        main.ask()
        return cls(main, main.memory, slot.confirmed_lsn, 0, main.stream.process)

    def of_one_process(self, other: Positions) -> bool:
        """Return whether both count on the same process of the daemon."""
        return self.process == other.process

    @property
    def catching_up(self) -> bool:
        """Whether what is read now is behind what most tables have."""
        return self.read_upto < self.ahead

    def is_ahead(self, end_lsn: int) -> bool:
        """Return whether the origin of all tables has no transaction of there yet."""
        return end_lsn > self.ahead

    def of(self, end_lsn: int, target: str) -> Sent:
        """Return the origin under which a table's changes are sent.

        Raises:
            ClientError: the daemon does not say how far it has that of the table.
            Restarted: it is another one.
        """
        return self.main if self.is_ahead(end_lsn) else self.catching_up_of(target)

    def catching_up_of(self, target: str) -> Sent:
        """Return the origin under which a table catches up; what it has is waited for.

        Raises:
            ClientError: the daemon does not say how far it has that of the table.
            Restarted: it is another one.
        """
        found = self.catch_up.get(target)
        if found is None:
            stream = self.main.stream
            name = catch_up_name(stream.origin, target)
            found = self.catch_up[target] = Sent(stream.beside(name))
            found.stream.epoch = self.process[1]
            found.ask()
        return found

    def ask(self) -> None:
        """Ask how far the main origin is, and those of which something is not in object storage.

        Raises:
            ClientError: the daemon does not answer.
            Restarted: it is another one.
        """
        for each in self._all():
            if each is self.main or each.waits:
                each.ask()

    def _all(self) -> Iterator[Sent]:
        yield self.main
        yield from self.catch_up.values()

    @property
    def sent(self) -> int:
        """The last transaction that the daemon has."""
        return max(each.memory for each in self._all())

    @property
    def safe(self) -> int:
        """All up to here is in object storage."""
        found = self.read_upto
        for each in self._all():
            if each.waits:
                found = min(found, each.durable)
        return found

    @property
    def settled(self) -> bool:
        """Whether all that was sent is in object storage."""
        return not any(each.waits for each in self._all())

    def confirmable(self, hold: int | None) -> int:
        """What the slot may be told now; ``hold``: not more than that."""
        bound = max(self.bound, self.main.durable)
        found = min(self.safe, bound)
        return found if hold is None else min(found, hold)


def catch_up_name(origin: str, target: str) -> str:
    """Return the name of the origin of a table that catches up."""
    return f"{origin}.catch-up-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
