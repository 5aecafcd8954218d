"""The state of a replicated table, and the shape of the rows that it has by its state.

    ReplicaState: a checkpoint that is committed with its rows
        origin of the table    system, database, slot and its age, publication, oid
        its definition         the catalog's facts, and the columns as they are kept here
        its position           phase, ``from_lsn``; ``upto`` for the slot as a whole; ``history``
    Shape: name here, key, columns (name at the source, name here, type)
    Layout: a shape with the Relation message that it fits

A table's state and the daemon's sequences of the origin are all that a replicator stores. An
unreadable state is refused and never taken for a missing one. A Relation message that does not fit
the shape is refused before any value is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ingester.postgres.facts import TableFacts
from ingester.postgres.pgoutput import Relation
from ingester.postgres.types import ColumnType, Policy, column_type

Phase = Literal["following", "set_aside", "left"]
"""Phases that are stored; all others exist only in a running replicator."""
PREFIX = "postgres:"
"""The prefix of checkpoint partitions that hold such states."""
MAX_STATE_BYTES = 1 << 20
History = tuple[tuple[int, int], ...]
"""The timelines of a log, each with its first position, the current one last."""


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
        history: The timelines that its positions belong to; empty if unknown.
        doubted: A source of this place was refused because its log ended here, before positions
            of this table; 0 if none was.
        halted: Why reading was stopped for good: it ended in crashes of the server.
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
    history: History = ()
    doubted: int = 0
    halted: str = ""
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


_NUMERIC = 1700
"""The OID of ``numeric``: its type here depends on its digits."""


class ShapeColumn(NamedTuple):
    """A followed column."""

    source: str
    name: str
    """The column's name here."""
    type: ColumnType


class Shape(NamedTuple):
    """A followed table."""

    target: str
    """The table's name here."""
    key: tuple[str, ...]
    """The key's columns by their names at the source."""
    columns: tuple[ShapeColumn, ...]
    full_identity: bool
    """Changes contain the whole old row."""
    left_out: tuple[str, ...] = ()
    """Columns of the source that are not kept here."""


class ShapeDiffers(ValueError):
    """The stream describes the table differently: its facts must be read again."""

    def __init__(self, oid: int, target: str, reason: str) -> None:
        self.oid, self.target, self.reason = oid, target, reason
        super().__init__(f"table {target!r}: {reason}")


class Layout(NamedTuple):
    """A shape with the Relation message by which rows are read."""

    relation: Relation
    shape: Shape

    def checked(self) -> Layout:
        """Raise :class:`ShapeDiffers` unless they match."""
        relation, shape = self
        there = {column.name for column in relation.columns}
        wanted = {column.source for column in shape.columns}
        new = sorted(there - wanted - set(shape.left_out))
        for names, reason in (
            (sorted(wanted - there), "is gone"),
            (new, "is new"),
            (sorted(set(shape.key) - set(relation.key)), "is not in the REPLICA IDENTITY"),
        ):
            if names:
                raise ShapeDiffers(relation.oid, shape.target, f"column {names[0]!r} {reason}")
        if (relation.identity == "f") != shape.full_identity:
            raise ShapeDiffers(relation.oid, shape.target, "its REPLICA IDENTITY changed")
        return self


def shape_of(target: str, facts: TableFacts, columns: Sequence[KeptColumn]) -> Shape:
    """The shape of a table with these facts."""
    by_name = {column.name: column for column in facts.columns}
    shaped = []
    for kept in columns:
        column = by_name[kept.source]
        kind = column_type(column.base_oid, column.base_modifier, kept.policy)
        shaped.append(ShapeColumn(kept.source, kept.name, kind))
    left_out = tuple(c.name for c in facts.columns if c.name not in {e.source for e in columns})
    return Shape(target, facts.key, tuple(shaped), facts.identity == "f", left_out)


def shape_then(target: str, state: ReplicaState, relation: Relation) -> Shape:
    """The shape of a table when the stream described it with these columns.

    Columns added since, null in all rows that existed, are not part of it.

    Raises:
        ShapeDiffers: a column is new or has another type.
    """
    known = {column.name: column for column in state.facts.sent_columns}
    for column in relation.columns:
        facts = known.get(column.name)
        if facts is None:
            raise ShapeDiffers(relation.oid, target, f"column {column.name!r} is new")
        if facts.type_oid != column.type_oid or (
            facts.type_modifier != column.type_modifier and facts.base_oid == _NUMERIC
        ):
            raise ShapeDiffers(relation.oid, target, f"column {column.name!r} has another type")
    there = {column.name for column in relation.columns}
    kept = [column for column in state.columns if column.source in there]
    shape = shape_of(target, state.facts, kept)
    return shape._replace(full_identity=relation.identity == "f")
