"""Changes of one table, as they came, become the message that is sent for them.

Law of this file: pure. A value that cannot be kept is told with its table, row and column; a key
has a value wherever the row is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.pgoutput import Cells as RowCells
from ingester.postgres.pgoutput import Change
from ingester.postgres.shape import Layout, ShapeColumn
from ingester.postgres.tuple_data import Cells, ChangedRows, Mask, filled, instead
from ingester.postgres.types import ValueNotKept, arrow_values


class SyncMessage(NamedTuple):
    """A message that is sent at once."""

    table: str
    columns: tuple[SyncColumn, ...]
    batch: pa.RecordBatch


class _Piece(NamedTuple):
    changes: Sequence[bytes]
    layout: Layout
    rows: ChangedRows


def message_of(changes: Sequence[bytes], layout: Layout) -> SyncMessage:
    """Make the message of changes, at least one.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
        UnknownMessage
    """
    relation, shape = layout
    piece = _Piece(changes, layout, ChangedRows(changes, len(relation.columns)))
    rows = piece.rows
    wanted = {column.source: column for column in shape.columns}
    keys: dict[str, tuple[pa.Array, pa.Array]] = {}
    values: list[tuple[SyncColumn, pa.Array]] = []
    for source, (old, new) in zip(relation.columns, rows.columns(), strict=True):
        column = wanted.get(source.name)
        if column is None:
            continue
        whole = filled(new, old)
        if column.source not in shape.key:
            values.append((SyncColumn("value", column.name), _array(piece, column, whole)))
            unchanged = whole.unchanged()
            if unchanged.any():
                values.append((SyncColumn("changed", column.name), pa.array(~unchanged)))
            continue
        before = instead(filled(old, new), whole, rows.is_update & ~rows.has_old)
        keys[column.source] = (
            _key(piece, column, before, rows.is_update | ~rows.has_new),
            _key(piece, column, whole, rows.has_new),
        )
    names = [wanted[source].name for source in shape.key]
    columns = [SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in names]
    arrays = [keys[source][side] for side in (0, 1) for source in shape.key]
    columns += [column for column, _ in values]
    arrays += [array for _, array in values]
    numbers = [f"{number}" for number in range(len(arrays))]
    return SyncMessage(shape.target, tuple(columns), pa.record_batch(arrays, names=numbers))


def _key(piece: _Piece, column: ShapeColumn, cells: Cells, wanted: Mask) -> pa.Array:
    """The values of a key's column, which are there in all rows that are wanted."""
    found = _array(piece, column, cells)
    if found.null_count != len(wanted) - np.count_nonzero(wanted):
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False) & wanted)
        at = int(missing[0])
        text = piece.rows.texts(cells)[at].as_py()
        shown = "null" if text is None else text.decode(errors="backslashreplace")
        error = ValueNotKept(column.source, at, shown, "is in the key, which needs a value")
        raise error.of(piece.layout.shape.target, _key_text(piece, at))
    return found


def _array(piece: _Piece, column: ShapeColumn, cells: Cells) -> pa.Array:
    try:
        return arrow_values(column.type, piece.rows.texts(cells), column.source)
    except ValueNotKept as exc:
        raise exc.of(piece.layout.shape.target, _key_text(piece, exc.row_index)) from exc


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
