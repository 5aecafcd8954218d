"""The tables of a replication: their states at the daemon, and the copies that are due.

    have       the states, as the daemon has them
    aside      tables that cannot be followed, with the reason; they may have no rows here
    orders     copies that are due, each from a time on

A state changes here only when the daemon has logged it. A table with an order is not followed.
Failing copies are retried with increasing pauses.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from ingester.client import Client, NotFound, StoredCheckpoint
from ingester.postgres.states import (
    ReplicaState,
    SlotPlace,
    decode_state,
    encode_state,
    partition_of,
)

REQUEST = ":resync"
"""The suffix of checkpoint partitions that request a new copy."""
FIRST_RETRY_S, LAST_RETRY_S, SHARE = 2.0, 30.0, 50
"""Pauses grow up to ``LAST_RETRY_S``, or so that retries take a 50th of the time."""


class SetAsideReason(NamedTuple):
    """Why a table is set aside, since when (ISO 8601), and what helps."""

    reason: str
    since: str
    helps: tuple[str, ...] = ()


@dataclass(frozen=True)
class CopyOrder:
    """A copy that is due.

    Attributes:
        due: When, on the monotonic clock.
        tries: The number of failures.
    """

    reason: str
    oid: int
    due: float = 0.0
    tries: int = 0


@dataclass
class Tables:
    """The tables of one origin in a namespace. Thread-safe."""

    client: Client
    namespace: str
    origin: str
    have: dict[str, ReplicaState] = field(default_factory=dict)
    aside: dict[str, SetAsideReason] = field(default_factory=dict)
    orders: dict[str, CopyOrder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self._doubts: dict[str, str] = {}
        self.undurable: set[str] = set()
        """Tables that are not followed, while object storage may still say that they are."""

    def load(self) -> None:
        """Read all states of the origin in the namespace.

        Raises:
            BadState: one cannot be read.
        """
        partition = partition_of(self.origin)
        have: dict[str, ReplicaState] = {}
        for name in self._listed(partition):
            stored = self.client.checkpoint(self.namespace, name, partition)
            if stored.state is not None:
                have[name] = decode_state(stored.state)
                if have[name].phase != "following" and not stored.durable:
                    self.undurable.add(name)
        with self.lock:
            self.have = have
            for name, state in have.items():
                if state.phase == "set_aside" and name not in self.aside:
                    self.aside[name] = SetAsideReason(state.reason, state.since, state.helps)

    def elsewhere(self) -> list[str]:
        """Other namespaces with tables of the origin."""
        partition = partition_of(self.origin)
        listed = self.client.checkpoints()
        return sorted({e.namespace for e in listed if e.partition == partition} - {self.namespace})

    def put(self, target: str, state: ReplicaState) -> None:
        """Store a state at the daemon; it is logged when this returns."""
        data = encode_state(state)
        self.client.put_checkpoint(self.namespace, target, partition_of(self.origin), data)
        with self.lock:
            self.have[target] = state
            if state.phase != "following":
                self.undurable.add(target)

    def stored(self, target: str) -> StoredCheckpoint:
        """The daemon's state of a table, in its log and in object storage.

        Raises:
            NotFound: the table was dropped here.
        """
        return self.client.checkpoint(self.namespace, target, partition_of(self.origin))

    def note_durable(self, target: str) -> None:
        """Note that object storage says that the table is not followed."""
        with self.lock:
            self.undurable.discard(target)

    def set_aside(self, target: str, reason: str, helps: tuple[str, ...] = ()) -> None:
        """Stop following a table, and record the reason in its state if it has one."""
        with self.lock:
            state, known = self.have.get(target), self.aside.get(target)
            if known is not None and known.reason == reason:
                return
            since = now() if known is None else known.since
            self.aside[target] = SetAsideReason(reason, since, helps)
        if state is not None and state.phase != "left":
            aside = msgspec.structs.replace(
                state, phase="set_aside", reason=reason, since=since, helps=helps
            )
            self.put(target, aside)

    def copied(self, target: str, state: ReplicaState) -> None:
        """Note that a table was copied, with this state."""
        with self.lock:
            self.have[target] = state
            self.aside.pop(target, None)
            self.orders.pop(target, None)
            self._doubts.pop(target, None)
            self.undurable.discard(target)

    def order(self, target: str, reason: str, oid: int) -> bool:
        """Order a copy and stop following the table until then; return whether the order is new."""
        with self.lock:
            known = self.orders.get(target)
            if known is not None:
                if known.oid != oid:
                    self.orders[target] = CopyOrder(reason, oid)
                return False
            self.orders[target] = CopyOrder(reason, oid)
            if target in self.have and self.have[target].phase == "following":
                self.undurable.add(target)
            return True

    def order_if_again(self, target: str, reason: str, oid: int) -> None:
        """Order a copy if the stream reports the reason again; a look may explain the first."""
        with self.lock:
            again = self._doubts.get(target) == reason
            self._doubts[target] = reason
        if again:
            self.order(target, reason, oid)

    def order_failed(self, target: str, took_s: float = 0.0) -> None:
        """Schedule the next attempt of a failed copy."""
        with self.lock:
            known = self.orders.get(target)
            if known is not None:
                tries = known.tries + 1
                longest = max(LAST_RETRY_S, SHARE * took_s)
                pause = min(longest, FIRST_RETRY_S * 1.5 ** min(tries - 1, 40))
                due = time.monotonic() + pause
                self.orders[target] = replace(known, due=due, tries=tries)

    def due(self) -> list[str]:
        """Tables whose copy is due."""
        with self.lock:
            at = time.monotonic()
            return sorted(name for name, order in self.orders.items() if order.due <= at)

    def states(self) -> dict[str, ReplicaState]:
        """A copy of all states."""
        with self.lock:
            return dict(self.have)

    def following(self) -> dict[str, ReplicaState]:
        """The states of the tables that changes are applied to."""
        with self.lock:
            return {
                name: state
                for name, state in self.have.items()
                if state.phase == "following" and name not in self.orders
            }

    def requests(self) -> list[str]:
        """Tables with a request for a new copy; the requests are deleted."""
        partition = partition_of(self.origin) + REQUEST
        found = self._listed(partition)
        for name in found:
            self.client.delete_checkpoint(self.namespace, name, partition)
        return found

    def empty(self, target: str, state: ReplicaState) -> None:
        """Replace a table by a version without rows, and store its state."""
        facts = state.facts
        by_source = {column.source: column.name for column in state.columns}
        key = [by_source[name] for name in facts.key]
        schema = self.client.schema(self.namespace, target)
        with self.client.copy(self.namespace, target, key, schema=schema) as copy:
            copy.finish(partition_of(self.origin), encode_state(state))
        with self.lock:
            self.have[target] = state

    def request(self, targets: Iterable[str]) -> None:
        """Request a new copy from the running replicator.

        Raises:
            NotFound: no such table here.
        """
        for name in targets:
            partition = partition_of(self.origin) + REQUEST
            self.client.put_checkpoint(self.namespace, name, partition, b"{}")

    def _listed(self, partition: str) -> list[str]:
        try:
            listed = self.client.checkpoints(self.namespace)
        except NotFound:
            return []
        return [each.table for each in listed if each.partition == partition]


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def newest_place(states: Iterable[ReplicaState]) -> SlotPlace | None:
    """The newest slot that tables are followed by; None if there is none."""
    places = [state.place for state in states if state.phase == "following"]
    return max(places, key=lambda place: place.slot_lsn, default=None)
