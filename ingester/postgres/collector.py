"""Changes of transactions, table by table, as the messages that are sent for them.

    changes ─▶ per table: pieces of 8 MB at most, as they came ─ take ─▶ columns ─▶ arrays

Law of this file: pure. Changes of a table keep their order; those of different tables need none, as
all that is sent together becomes visible at once. Tables under REPLICA IDENTITY FULL are settled
per transaction (``settle``). A text is here once: a piece becomes arrays when it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.pgoutput import Cells as RowCells
from ingester.postgres.pgoutput import Change, Relation
from ingester.postgres.settle import NotWhole, drained, settle
from ingester.postgres.tuple_data import Cells, ChangedRows, filled, instead
from ingester.postgres.types import ColumnType, ValueNotKept, arrow_values

MESSAGE_ROWS = 50_000
MESSAGE_BYTES = 8 << 20
"""The bytes of one message, about; the daemon's limit is several times that. A row that has more is
a message of its own."""
_ROW_BYTES = 48
"""What holding a change takes beside its bytes."""


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


class SyncMessage(NamedTuple):
    """A message that is sent at once."""

    table: str
    columns: tuple[SyncColumn, ...]
    batch: pa.RecordBatch


class TruncatedTable(NamedTuple):
    """In the place of a message: all rows that the table has by now are gone."""

    target: str


class _Layout(NamedTuple):
    """Where the columns of a shape stand in a row, under one Relation message."""

    relation: Relation
    shape: Shape

    def checked(self) -> _Layout:
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


class _Piece:
    """Changes of one table that become one message."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self.target = layout.shape.target
        self.changes: list[bytes] = []
        self.nbytes = 0


class Collector:
    """Collects the changes that were read and not sent yet."""

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        """Take the shapes of the tables that are followed, by OID; looked up at each Relation."""
        self._shapes = shapes
        self._layouts: dict[int, _Layout] = {}
        self._done: list[_Piece | TruncatedTable] = []
        self._open: dict[str, _Piece] = {}
        self._unsettled: dict[int, list[bytes]] = {}
        """Changes of the transaction that is being read, under REPLICA IDENTITY FULL."""
        self.upto: int | None = None
        """The end of the last transaction that is here in whole."""
        self.changes = 0
        """The number of changes that wait here."""
        self.nbytes = 0
        """The bytes that the changes take here."""

    def relation(self, relation: Relation) -> None:
        """Note a table as it is from now on; one without a shape is passed over.

        Raises:
            ShapeDiffers
        """
        shape = self._shapes.get(relation.oid)
        if shape is None:
            self._settle(relation.oid)
            self._layouts.pop(relation.oid, None)
            return
        layout = _Layout(relation, shape).checked()
        if self._layouts.get(relation.oid) != layout:
            # Nothing that a transaction may have twice is left open when its table is altered.
            self._settle(relation.oid)
            self._layouts[relation.oid] = layout

    def add(self, change: Change) -> None:
        """Add a change of the transaction that is being read; of an unknown table none."""
        oid, data = change
        layout = self._layouts.get(oid)
        if layout is None:
            return
        if layout.shape.full_identity:
            self._unsettled.setdefault(oid, []).append(data)
            self._count(1, len(data) + _ROW_BYTES)
        else:
            self._append(layout, data)

    def truncate(self, oid: int) -> None:
        """Forget what is here of a table; ``take`` yields :class:`TruncatedTable` in its place."""
        layout = self._layouts.get(oid)
        if layout is None:
            return
        target = layout.shape.target
        for other in [oid for oid in self._unsettled if self._target(oid) == target]:
            self._unsettled_of(other)
        if target in self._open:
            self._done.append(self._open.pop(target))
        for piece in self._done:
            if piece.target == target and isinstance(piece, _Piece):
                self._count(-len(piece.changes), -piece.nbytes)
        self._done = [piece for piece in self._done if piece.target != target]
        self._done.append(TruncatedTable(target))

    def commit(self, end_lsn: int) -> None:
        """Note that all of a transaction is here.

        Raises:
            ShapeDiffers, UnknownMessage
        """
        for oid in list(self._unsettled):
            self._settle(oid)
        self.upto = end_lsn

    def take(self) -> Iterator[SyncMessage | TruncatedTable]:
        """Take everything out as messages. Only when no transaction is here in part.

        Raises:
            ValueNotKept: with the table's name, the row's key and the column.
            UnknownMessage
        """
        assert not self._unsettled
        waiting = [*self._done, *self._open.values()][::-1]
        self._done, self._open, self.upto = [], {}, None
        self.changes = self.nbytes = 0
        while waiting:
            piece = waiting.pop()
            yield piece if isinstance(piece, TruncatedTable) else _message(piece)

    def _count(self, changes: int, nbytes: int) -> None:
        self.changes += changes
        self.nbytes += nbytes

    def _append(self, layout: _Layout, data: bytes) -> None:
        piece = self._open.get(layout.shape.target)
        nbytes = len(data) + _ROW_BYTES
        if (
            piece is None
            or piece.layout is not layout
            or piece.nbytes + nbytes > MESSAGE_BYTES
            or len(piece.changes) >= MESSAGE_ROWS
        ):
            if piece is not None:
                self._done.append(piece)
            piece = self._open[layout.shape.target] = _Piece(layout)
        piece.changes.append(data)
        piece.nbytes += nbytes
        self.changes += 1
        self.nbytes += nbytes

    def _target(self, oid: int) -> str:
        return self._layouts[oid].shape.target

    def _unsettled_of(self, oid: int) -> list[bytes]:
        changes = self._unsettled.pop(oid, [])
        self._count(-len(changes), -sum(len(data) + _ROW_BYTES for data in changes))
        return changes

    def _settle(self, oid: int) -> None:
        changes = self._unsettled_of(oid)
        if not changes:
            return
        layout = self._layouts[oid]
        try:
            for data in settle(drained(changes)) if len(changes) > 1 else changes:
                self._append(layout, data)
        except NotWhole as exc:
            raise ShapeDiffers(oid, layout.shape.target, str(exc)) from exc


def _message(piece: _Piece) -> SyncMessage:
    relation, shape = piece.layout
    rows = ChangedRows(piece.changes, len(relation.columns))
    wanted = {column.source: column for column in shape.columns}
    keys: dict[str, tuple[pa.Array, pa.Array]] = {}
    values: list[tuple[SyncColumn, pa.Array]] = []
    for source, (old, new) in zip(relation.columns, rows.columns(), strict=True):
        column = wanted.get(source.name)
        if column is None:
            continue
        whole = filled(new, old)
        if column.source not in shape.key:
            values.append((SyncColumn("value", column.name), _array(piece, column, rows, whole)))
            unchanged = whole.unchanged()
            if unchanged.any():
                values.append((SyncColumn("changed", column.name), pa.array(~unchanged)))
            continue
        before = instead(filled(old, new), whole, rows.is_update & ~rows.has_old)
        keys[column.source] = (
            _key(piece, column, rows, before, rows.is_update | ~rows.has_new),
            _key(piece, column, rows, whole, rows.has_new),
        )
    names = [wanted[source].name for source in shape.key]
    columns = [SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in names]
    arrays = [keys[source][side] for side in (0, 1) for source in shape.key]
    columns += [column for column, _ in values]
    arrays += [array for _, array in values]
    numbers = [f"{number}" for number in range(len(arrays))]
    return SyncMessage(shape.target, tuple(columns), pa.record_batch(arrays, names=numbers))


def _key(
    piece: _Piece, column: ShapeColumn, rows: ChangedRows, cells: Cells, wanted: np.ndarray
) -> pa.Array:
    """The values of a key's column, which are there in all rows that are wanted."""
    found = _array(piece, column, rows, cells)
    if found.null_count != len(wanted) - np.count_nonzero(wanted):
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False) & wanted)
        at = int(missing[0])
        text = rows.texts(cells)[at].as_py()
        shown = "null" if text is None else text.decode(errors="backslashreplace")
        error = ValueNotKept(column.source, at, shown, "is in the key, which needs a value")
        raise error.of(piece.target, _key_text(piece, at))
    return found


def _array(piece: _Piece, column: ShapeColumn, rows: ChangedRows, cells: Cells) -> pa.Array:
    try:
        return arrow_values(column.type, rows.texts(cells), column.source)
    except ValueNotKept as exc:
        raise exc.of(piece.target, _key_text(piece, exc.row_index)) from exc


def _key_text(piece: _Piece, row: int) -> str:
    """A row's key, as ``id=7, day=2026-11-26``."""
    relation, shape = piece.layout
    old, new = Change(relation.oid, piece.changes[row]).rows()
    names = [column.name for column in relation.columns]
    return ", ".join(f"{name}={_shown(names.index(name), new, old)}" for name in shape.key)


def _shown(at: int, *rows: RowCells | None) -> str:
    for row in rows:
        if row is not None and isinstance(cell := row[at], bytes):
            return cell.decode(errors="backslashreplace")
    return "null"
