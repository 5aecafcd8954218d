"""Changes of transactions, table by table, as the messages that are sent for them.

Law of this file: pure. Changes of a table keep their order; those of different tables need none, as
all that is sent together becomes visible at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.pgoutput import UNCHANGED, Cells, Change, Relation
from ingester.postgres.types import arrow_values

MESSAGE_ROWS = 50_000
MESSAGE_BYTES = 8 << 20
"""The texts of one message, about; the daemon's limit is several times that."""


class NoKey(ValueError):
    """A table without a primary key cannot be replicated."""


class SyncMessage(NamedTuple):
    """A message that is sent at once."""

    table: str
    columns: tuple[SyncColumn, ...]
    batch: pa.RecordBatch


class _Rows:
    """Changes of one table, as long as its columns stay the same."""

    def __init__(self, relation: Relation, key: tuple[str, ...]) -> None:
        names = [column.name for column in relation.columns]
        self.relation = relation
        self._key = [names.index(name) for name in key]
        self._values = [at for at, name in enumerate(names) if name not in key]
        self._old: list[Cells | None] = []
        self._new: list[Cells | None] = []
        self.nbytes = 0

    @property
    def full(self) -> bool:
        return len(self._new) >= MESSAGE_ROWS or self.nbytes >= MESSAGE_BYTES

    @property
    def rows(self) -> int:
        return len(self._new)

    def add(self, change: Change) -> None:
        old = change.old
        if change.new is not None and old is None and change.is_update:
            old = change.new
        self._old.append(old)
        self._new.append(change.new)
        cells = (change.new or ()) + (old or ())
        self.nbytes += sum(len(cell) for cell in cells if isinstance(cell, str)) + 16

    def _key_text(self, role: str, at: int, row: int) -> str | None:
        """A key's text; a large one that stayed as it was stands in the old key alone."""
        sides = (self._old, self._new) if role == "old_pk" else (self._new, self._old)
        for cells in (side[row] for side in sides):
            if cells is not None and cells[at] is not UNCHANGED:
                return _text(cells[at])
        return None

    def message(self) -> SyncMessage:
        columns: list[SyncColumn] = []
        arrays: list[pa.Array] = []
        for role, sides in (("old_pk", self._old), ("new_pk", self._new)):
            for at in self._key:
                column = self.relation.columns[at]
                texts = [
                    None if cells is None else self._key_text(role, at, row)
                    for row, cells in enumerate(sides)
                ]
                columns.append(SyncColumn(role, column.name))
                arrays.append(arrow_values(column, texts))
        for at in self._values:
            column = self.relation.columns[at]
            cells_of = [None if cells is None else cells[at] for cells in self._new]
            columns.append(SyncColumn("value", column.name))
            arrays.append(arrow_values(column, [_text(cell) for cell in cells_of]))
            if any(cell is UNCHANGED for cell in cells_of):
                columns.append(SyncColumn("changed", column.name))
                arrays.append(pa.array([cell is not UNCHANGED for cell in cells_of]))
        names = [f"{number}" for number in range(len(arrays))]
        return SyncMessage(
            table_name(self.relation), tuple(columns), pa.record_batch(arrays, names=names)
        )


class Collector:
    """Collects the changes that were read and not sent yet."""

    def __init__(self, keys: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        """Take ``keys``, the primary key of each table by (schema, name)."""
        self._keys = keys
        self._relations: dict[int, Relation] = {}
        self._done: list[_Rows] = []
        self._rows: dict[int, _Rows] = {}
        self.upto: int | None = None
        """The end of the last transaction that is here in whole."""

    @property
    def nbytes(self) -> int:
        """The bytes of the texts that wait here."""
        return sum(rows.nbytes for rows in (*self._done, *self._rows.values()))

    @property
    def changes(self) -> int:
        """The number of changes that wait here."""
        return sum(rows.rows for rows in (*self._done, *self._rows.values()))

    def relation(self, relation: Relation) -> None:
        """Note a table as it is from now on."""
        known = self._relations.get(relation.oid)
        self._relations[relation.oid] = relation
        if known != relation and relation.oid in self._rows:
            self._done.append(self._rows.pop(relation.oid))

    def of(self, oid: int) -> Relation:
        """The table as it is now."""
        return self._relations[oid]

    def add(self, change: Change) -> None:
        """Add a row of the transaction that is being read, or raise :class:`NoKey`."""
        rows = self._rows.get(change.relation)
        if rows is None or rows.full:
            if rows is not None:
                self._done.append(rows)
            relation = self._relations[change.relation]
            # A table that is gone by now was there when it changed.
            key = self._keys.get((relation.schema, relation.name)) or relation.key
            if not key:
                raise NoKey(f"table {relation.schema}.{relation.name} has no primary key")
            rows = self._rows[change.relation] = _Rows(relation, key)
        rows.add(change)

    def commit(self, end_lsn: int) -> None:
        """Note that all of a transaction is here."""
        self.upto = end_lsn

    def take(self) -> Iterator[SyncMessage]:
        """Take everything out as messages. Only when no transaction is here in part."""
        waiting = [*self._done, *self._rows.values()]
        self._done, self._rows, self.upto = [], {}, None
        for rows in waiting:
            yield rows.message()


def table_name(relation: Relation) -> str:
    """The table's name here: with its schema, unless that is ``public``."""
    return relation.name if relation.schema == "public" else f"{relation.schema}.{relation.name}"


def _text(cell: object) -> str | None:
    return cell if isinstance(cell, str) else None
