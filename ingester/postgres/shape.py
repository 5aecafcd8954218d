"""How the rows of a table are read: its name here, its key, its columns and their types.

    Shape: target, key, columns (name at the source, name here, type)
    Layout: a shape with the Relation message that it fits

A Relation message that does not fit the shape is refused before any value is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingester.postgres.facts import TableFacts
from ingester.postgres.pgoutput import Relation
from ingester.postgres.states import KeptColumn, ReplicaState
from ingester.postgres.types import ColumnType, column_type

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
