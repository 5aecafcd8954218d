"""The state of a replicated table: a checkpoint that is committed with its rows.

    origin of the table    system, database, slot and its age, publication, oid
    its definition         the catalog's facts, and the columns as they are kept here
    its position           phase, ``from_lsn``; ``upto`` for the slot as a whole

A table's state and the daemon's sequences of the origin are all that a replicator stores. An
unreadable state is refused and never taken for a missing one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ingester.postgres.facts import TableFacts
from ingester.postgres.types import Policy

Phase = Literal["following", "set_aside", "left"]
"""What a table that has rows here does. The other phases are of a process, and in no state."""
PREFIX = "postgres:"
"""What the names of partitions begin with that have such states."""
MAX_STATE_BYTES = 1 << 20


class KeptColumn(msgspec.Struct, frozen=True):
    """A column of the source, and how it is kept here.

    Attributes:
        kind: The type here, as Arrow writes it.
    """

    source: str
    name: str
    kind: str
    policy: Policy = "refuse"


class SlotPlace(msgspec.Struct, frozen=True):
    """The slot that changes come from; ``slot_lsn`` tells one from another of the same name."""

    system_identifier: str
    database: str
    slot: str
    slot_lsn: int

    def is_of(self, other: SlotPlace) -> bool:
        """Return whether it is the same slot by name, of whatever age."""
        mine = (self.system_identifier, self.database, self.slot)
        return mine == (other.system_identifier, other.database, other.slot)


class ReplicaState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one table here.

    Attributes:
        facts: The source's table when it was copied, with the columns that it has got since.
        columns: Those that are kept, in the source's order.
        from_lsn: Transactions that end at or before it are in the copy.
        upto: The source's log up to here has nothing of any table that is not in object storage.
        reason: Why it is set aside, or has left.
        since: When that was, in ISO 8601; of a table that is followed, when it was copied.
        helps: What makes it follow again.
    """

    place: SlotPlace
    publication: str
    facts: TableFacts
    columns: tuple[KeptColumn, ...]
    from_lsn: int
    phase: Phase = "following"
    reason: str = ""
    since: str = ""
    helps: tuple[str, ...] = ()
    upto: int = 0
    version: Literal[1] = 1


class BadState(ValueError):
    """A state that this version cannot read."""


def partition_of(origin: str) -> str:
    """Return the name of the partition under which a table has the state of an origin."""
    return f"{PREFIX}{origin}"


def encode_state(state: ReplicaState) -> bytes:
    """Return the state as JSON.

    Raises:
        BadState: it is larger than a checkpoint may be.
    """
    data = msgspec.json.encode(state)
    if len(data) > MAX_STATE_BYTES:
        raise BadState(
            f"the state of {state.facts.schema}.{state.facts.name} has {len(data)} bytes; a"
            f" checkpoint may have {MAX_STATE_BYTES}: it has too many columns or partitions"
        )
    return data


def decode_state(data: bytes) -> ReplicaState:
    """Return the state that JSON has.

    Raises:
        BadState: it is of another version, or damaged.
    """
    try:
        return msgspec.json.decode(data, type=ReplicaState)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadState(f"a state that this version cannot read: {exc}") from exc
