"""What a table of the source is here, and whether the log's rows still fit it.

    Shape: target, key, columns (name there, name here, type)
    Layout: a shape with the Relation message that it fits

Law of this file: pure. A row that the log describes in another way than its shape is refused before
any value of it is read.
"""

from __future__ import annotations

from typing import NamedTuple

from ingester.postgres.pgoutput import Relation
from ingester.postgres.types import ColumnType


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
