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
"""Phases that are stored; all others exist only in a running replicator."""
PREFIX = "postgres:"
"""The prefix of checkpoint partitions that hold such states."""
MAX_STATE_BYTES = 1 << 20


class KeptColumn(msgspec.Struct, frozen=True):
    """A column of the source, and how it is kept here.

    Attributes:
        kind: The Arrow type here, as text.
    """

    source: str
    name: str
    kind: str
    policy: Policy = "refuse"


class SlotPlace(msgspec.Struct, frozen=True):
    """The source's slot; ``slot_lsn`` distinguishes slots of the same name."""

    system_identifier: str
    database: str
    slot: str
    slot_lsn: int

    def is_of(self, other: SlotPlace) -> bool:
        """Whether it is a slot of the same system, database and name."""
        mine = (self.system_identifier, self.database, self.slot)
        return mine == (other.system_identifier, other.database, other.slot)


class ReplicaState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one table here.

    Attributes:
        facts: The source's table when it was copied, with columns added since.
        columns: The kept columns, in the source's order.
        from_lsn: Transactions that end at or before it are in the copy.
        upto: All changes of any table up to here are in object storage.
        reason: Why it is set aside or has left.
        since: When that happened, or when it was copied, in ISO 8601.
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
    """The checkpoint partition of an origin's state."""
    return f"{PREFIX}{origin}"


def encode_state(state: ReplicaState) -> bytes:
    """The state as JSON.

    Raises:
        BadState: larger than a checkpoint may be.
    """
    data = msgspec.json.encode(state)
    if len(data) > MAX_STATE_BYTES:
        raise BadState(
            f"the state of {state.facts.schema}.{state.facts.name} has {len(data)} bytes, more than"
            f" a checkpoint may have ({MAX_STATE_BYTES}): it has too many columns or partitions"
        )
    return data


def decode_state(data: bytes) -> ReplicaState:
    """The state from JSON.

    Raises:
        BadState: another version, or damaged.
    """
    try:
        return msgspec.json.decode(data, type=ReplicaState)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadState(f"this version cannot read the state: {exc}") from exc
