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
    """A column that is followed."""

    source: str
    name: str
    """The name here."""
    type: ColumnType


class Shape(NamedTuple):
    """A table as it is followed."""

    target: str
    """The name of the table here."""
    key: tuple[str, ...]
    """The columns of the key by their names at the source."""
    columns: tuple[ShapeColumn, ...]
    full_identity: bool
    """Changes have the whole old row."""
    left_out: tuple[str, ...] = ()
    """Columns of the source that are not wanted here."""


class ShapeDiffers(ValueError):
    """What the log says of a table is not what it is followed by: its facts are to be read anew."""

    def __init__(self, oid: int, target: str, reason: str) -> None:
        self.oid, self.target, self.reason = oid, target, reason
        super().__init__(f"table {target!r}: {reason}")


class Layout(NamedTuple):
    """Where the columns of a shape stand in a row, under one Relation message."""

    relation: Relation
    shape: Shape

    def checked(self) -> Layout:
        """Raises :class:`ShapeDiffers`."""
        relation, shape = self
        there = {column.name for column in relation.columns}
        wanted = {column.source for column in shape.columns}
        new = sorted(there - wanted - set(shape.left_out))
        for names, reason in (
            (sorted(wanted - there), "is not there any more"),
            (new, "is new"),
            (sorted(set(shape.key) - set(relation.key)), "is not in the REPLICA IDENTITY"),
        ):
            if names:
                raise ShapeDiffers(relation.oid, shape.target, f"column {names[0]!r} {reason}")
        if (relation.identity == "f") != shape.full_identity:
            raise ShapeDiffers(relation.oid, shape.target, "its REPLICA IDENTITY is another one")
        return self


def shape_of(target: str, facts: TableFacts, columns: Sequence[KeptColumn]) -> Shape:
    """Return the shape by which changes of a table are read."""
    by_name = {column.name: column for column in facts.columns}
    shaped = tuple(
        ShapeColumn(each.source, each.name, column_type(by_name[each.source], each.policy))
        for each in columns
    )
    left_out = tuple(c.name for c in facts.columns if c.name not in {e.source for e in columns})
    return Shape(target, facts.key, shaped, facts.identity == "f", left_out)


def shape_then(target: str, state: ReplicaState, relation: Relation) -> Shape:
    """Return the shape of a table as it was when the stream says that it had these columns.

    Columns that it has got since, with null in all rows that were there, are not in it.

    Raises:
        ShapeDiffers: it cannot have been this table.
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
