"""How far changes are read, sent and stored, and how far the slot may advance.

    read_upto    everything up to here was read, and its wanted changes were sent
    main         the origin of all tables, in the order of the log
    catch_up     an origin for each copied table, until it is where the others are
    bound        what a start will find to be safe: the slot is never told more

The slot is told only positions that are in files: every daemon of the store finds these, and a
daemon's log objects only its successor. ``bound`` survives the loss of this
process and of the daemon's disk; by it a start recognizes a slot of the same name that was created
again. A session depends on one process of the daemon: another one may have lost rows.

    nothing to send ─▶ IdleSlot: a message into the source's log ─▶ it returns by the stream ─▶
    ``upto`` is put into a table's state ─▶ once that is in object storage ─▶ the slot may advance

    a copy is ordered, or a table set aside ─▶ SlotHold ─▶ its copy is committed, or its state
                                               says in object storage that it is not followed

Invariant: the source drops the log that a table was not given only when no start, whatever was
lost here, takes that table for one that is followed (``tests/postgres/test_holding.py``).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingester.client import AckLevel, Client, NotFound, Restarted, TimedOut
from ingester.client.sync_stream import SyncAnswer, SyncStream
from ingester.postgres.slot import FoundSlot, current_lsn, send_heartbeat
from ingester.postgres.states import decode_state, encode_state
from ingester.postgres.tables import Tables, now

SETTLE_EVERY_S = 3.0
UPTO_EVERY_S = 30.0
ASK_EVERY_S = 3.0
PERSIST_S = 5.0
WORTH_BYTES = 256 << 10
"""An idle slot is advanced when the log has grown by this much."""


@dataclass
class SentOrigin:
    """One origin: its stream, how far the daemon has it, and how far it is in files."""

    stream: SyncStream
    memory: int = -1
    durable: int = -1

    def ask(self) -> None:
        """Ask the daemon for its position.

        Raises:
            Restarted: another process answers.
        """
        before, answer = self.stream.epoch, self.stream.standing()
        if before not in (None, answer.epoch):
            raise Restarted("the daemon has restarted")
        self.note(answer)

    def note(self, answer: SyncAnswer) -> None:
        """Record an answer's sequences."""
        if answer.memory_sequence is not None:
            self.memory = answer.memory_sequence
        if answer.files_sequence is not None:
            self.durable = answer.files_sequence

    @property
    def waits(self) -> bool:
        """Whether part of it is not in files."""
        return self.memory > self.durable


@dataclass
class Positions:
    """The positions of one session."""

    main: SentOrigin
    ahead: int
    """The main origin had transactions up to here before the session."""
    read_upto: int
    """The stream was read up to here; initially its first position."""
    bound: int
    """The safe position according to the states."""
    process: tuple[str, int | None] = ("", None)
    """The daemon and the epoch of its process that the session depends on."""
    committed_at: float = 0.0
    """The commit time of the last transaction read."""
    changes: int = 0
    transactions: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Row changes sent, by table."""
    confirmed: int = field(default=0)
    catch_up: dict[str, SentOrigin] = field(default_factory=dict)
    """By table: a table copied later may lack fewer transactions, and an origin's sequences only
    grow."""

    @classmethod
    def begin(
        cls,
        client: Client,
        namespace: str,
        origin: str,
        slot: FoundSlot,
        ack: AckLevel | None = None,
    ) -> Positions:
        """Ask the daemon for its positions; ``ack`` is the level of the session's changes."""
        main = SentOrigin(client.sync(namespace, origin, ack=ack))
        main.ask()
        return cls(main, main.memory, slot.confirmed_lsn, 0, main.stream.process)

    def of_one_process(self, other: Positions) -> bool:
        """Whether both depend on the same process of the daemon."""
        return self.process == other.process

    @property
    def catching_up(self) -> bool:
        """Whether the stream is behind most tables."""
        return self.read_upto < self.ahead

    def is_ahead(self, end_lsn: int) -> bool:
        """Whether the transaction is new to the main origin."""
        return end_lsn > self.ahead

    def of(self, end_lsn: int, target: str) -> SentOrigin:
        """The origin for a table's changes.

        Raises:
            Restarted: another process of the daemon answers.
        """
        return self.main if self.is_ahead(end_lsn) else self.catching_up_of(target)

    def catching_up_of(self, target: str) -> SentOrigin:
        """The origin under which a table catches up; the slot waits for it.

        Raises:
            Restarted: another process of the daemon answers.
        """
        found = self.catch_up.get(target)
        if found is None:
            stream = self.main.stream
            name = catch_up_name(stream.origin, target)
            found = self.catch_up[target] = SentOrigin(stream.beside(name))
            found.stream.epoch = self.process[1]
            found.ask()
        return found

    def ask(self) -> None:
        """Ask for the main origin's position, and for those with rows not in object storage.

        Raises:
            Restarted: another process of the daemon answers.
        """
        for each in self._all():
            if each is self.main or each.waits:
                each.ask()

    def _all(self) -> Iterator[SentOrigin]:
        yield self.main
        yield from self.catch_up.values()

    @property
    def sent(self) -> int:
        """The last transaction that the daemon has."""
        return max(each.memory for each in self._all())

    @property
    def safe(self) -> int:
        """Everything up to here is in object storage."""
        found = self.read_upto
        for each in self._all():
            if each.waits:
                found = min(found, each.durable)
        return found

    @property
    def settled(self) -> bool:
        """Whether everything sent is in object storage."""
        return not any(each.waits for each in self._all())

    def confirmable(self, hold: int | None) -> int:
        """The position that may be confirmed; at most ``hold``."""
        bound = max(self.bound, self.main.durable)
        found = min(self.safe, bound)
        return found if hold is None else min(found, hold)


def catch_up_name(origin: str, target: str) -> str:
    """The origin under which a table catches up."""
    return f"{origin}.catch-up-{hashlib.sha256(target.encode()).hexdigest()[:16]}"


class SlotHold:
    """Holds the slot for the tables of one origin. One thread."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lsn: int | None = None
        self._settled_at = 0.0

    def begin(self, confirmed: int) -> int:
        """Hold the slot at its position unless it is held; return that position."""
        if self._lsn is None:
            self._lsn = confirmed
        return self._lsn

    def at(self, confirmed: int) -> int | None:
        """The highest position that may be confirmed, or None; begins a hold if needed."""
        return self.begin(confirmed) if self._tables.undurable else self._lsn

    def end(self) -> None:
        """End the hold when no copy is running, unless a state must become durable first."""
        if not self._tables.undurable:
            self._lsn = None

    def settle(self) -> None:
        """Record in object storage that tables are not followed, while none is being copied."""
        if time.monotonic() - self._settled_at >= SETTLE_EVERY_S:
            self._settled_at = time.monotonic()
            for target in sorted(self._tables.undurable):
                try:
                    self._settle(target)
                except NotFound:
                    self._tables.note_durable(target)  # Dropped at the daemon.

    def _settle(self, target: str) -> None:
        tables = self._tables
        state, order = tables.have.get(target), tables.orders.get(target)
        if state is None:
            tables.note_durable(target)
        elif state.phase != "following":
            stored = tables.stored(target)
            if stored.state != encode_state(state):
                tables.put(target, state)  # The daemon has lost it.
            elif stored.durable:
                tables.note_durable(target)
        elif order is None or order.tries:
            reason = "its copy was given up" if order is None else order.reason
            aside = msgspec.structs.replace(state, phase="set_aside", reason=reason, since=now())
            tables.put(target, aside)


class IdleSlot:
    """Advances the bound of a session's positions. One thread."""

    def __init__(self, tables: Tables, positions: Positions, heartbeat_s: float) -> None:
        self._tables = tables
        self._positions = positions
        self._heartbeat_s = heartbeat_s
        self._beat_at = 0.0
        self._upto_at = 0.0
        self._asked_at = 0.0
        self._waits: tuple[str, int] | None = None

    def keep(self, connection: Any, hurry: bool) -> None:
        """Do what is due, once everything read was sent; ``hurry``: a heartbeat every second."""
        at, positions = time.monotonic(), self._positions
        if at - self._beat_at >= (1.0 if hurry else self._heartbeat_s):
            self._beat_at = at
            if hurry or current_lsn(connection) - positions.read_upto >= WORTH_BYTES:
                send_heartbeat(connection)
        following = self._tables.following()
        if not following:
            # All tables will be copied later: nothing depends on the slot's log.
            positions.bound = max(positions.bound, positions.safe)
        elif self._waits is not None:
            self._look_after(at)
        elif self._is_worth(at):
            self._upto_at = at
            target = min(following)
            upto = positions.safe
            state = following[target]
            self._tables.put(target, msgspec.structs.replace(state, upto=upto))
            # A state without rows is flushed only with rows, or after ``persist.max_age``.
            with suppress(TimedOut):
                self._tables.client.persist(self._tables.namespace, target, timeout_s=PERSIST_S)
            self._waits = (target, upto)

    def _is_worth(self, at: float) -> bool:
        positions = self._positions
        known = max(positions.bound, positions.main.durable)
        return (
            positions.settled
            and at - self._upto_at >= UPTO_EVERY_S
            and positions.safe - known >= WORTH_BYTES
        )

    def _look_after(self, at: float) -> None:
        assert self._waits is not None
        if at - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = at
        target, upto = self._waits
        # If the daemon lost its disk, the state is gone or durable.
        stored = self._tables.stored(target)
        if stored.durable_state is not None and _upto(stored.durable_state) >= upto:
            self._positions.bound = max(self._positions.bound, upto)
            self._waits = None
        elif stored.state is None or _upto(stored.state) < upto:
            self._waits = None


def _upto(state: bytes) -> int:
    return decode_state(state).upto
