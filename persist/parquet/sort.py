"""Rows of one file in their final order: tags by rising cardinality, then time.

Law of this file: the order is total over the named columns with nulls last, ties keep the order of
arrival, and no row is lost; in a keyed table only the last row of a key stays, and none of a key
that was deleted last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.parquet.sort_keys import Key, argsort, key_of, last_of_each_key
from persist.parquet.sparse_rows import SparseRows
from persist.parquet.take import MIN_ROWS_A_CHUNK, RowPicker, taken
from persist.table import DELETED, TableDefinition

MAX_TAG_CARDINALITY = 65_536
"""A string column of more different values is text, not a tag: sorting by it groups nothing."""

SAMPLE_ROWS = 8192

ABSENT_BYTES, KEY_BYTES = 1 << 20, 8
"""The memory for sort keys that most rows lack, if the rows have no more; a key's bytes a row."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows in file order, and the columns that they are ordered by."""

    order: tuple[str, ...]
    arrivals: npt.NDArray[np.uint32] | None
    """The number in order of arrival of each row; ``None`` where they stand as they came."""
    _arrived: RowPicker

    @property
    def rows(self) -> int:
        """The number of rows: fewer than have arrived, where keyed."""
        return self._arrived.rows if self.arrivals is None else len(self.arrivals)

    def slice(self, start: int = 0, rows: int | None = None) -> pa.Table:
        """A stretch of the rows; without ``rows`` up to the last."""
        stop = self.rows if rows is None else min(self.rows, start + rows)
        if self.arrivals is None:
            return self._arrived.stretch(start, stop)
        return self._arrived.pick(self.arrivals[start:stop])

    def fitting(self, start: int, rows: int, most_bytes: int) -> int:
        """The number of rows from ``start``, up to ``rows``, that take at most ``most_bytes``.

        It is at least 1; absent columns do not count. Where all batches have the same columns, it
        is ``rows``.
        """
        while rows > 1 and self._arrived.bytes_of(start, start + rows, self.arrivals) > most_bytes:
            rows = -(-rows // 2)
        return rows


def sort_rows(rows: pa.Table | SparseRows, definition: TableDefinition) -> Sorted:
    """Order the rows of a table of the definition's schema.

    Args:
        rows: in order of arrival, chunks of any size; with a column :data:`DELETED` where some of
            them delete.

    Returns:
        Rows with the same columns; string columns that serve as sort keys come back
        dictionary-encoded, which is how Parquet stores them.
    """
    table, deleted = without_marks(rows, definition)
    encoded, keys = _sort_keys(table, definition)
    names = tuple(key.name for key in keys)
    order: npt.NDArray[np.int64] | None = None
    if keys and table.num_rows:
        order = _last_rows(keys, definition) if definition.keyed else argsort(keys)
        if deleted is not None:
            order = order[~deleted[order]]
        if _is_identity(order, table.num_rows):
            order = None
    arrivals = None if order is None else order.astype(np.uint32)
    return Sorted(names, arrivals, RowPicker(table, encoded))


def without_marks(
    rows: pa.Table | SparseRows, definition: TableDefinition
) -> tuple[SparseRows, npt.NDArray[np.bool_] | None]:
    """The table's own columns, and which of the rows delete; None where none can."""
    rows = SparseRows.of_table(rows)
    if DELETED not in rows.schema.names:
        return rows, None
    marks = pc.fill_null(rows.column(DELETED), False).to_numpy()
    return SparseRows.of(rows.batches, definition.schema), marks


def _sort_keys(
    table: SparseRows, definition: TableDefinition
) -> tuple[dict[str, pa.Array], list[Key]]:
    """The dictionary forms of string keys, and the keys in sort order."""
    explicit = definition.sort_by or definition.primary_key
    if explicit:
        names = list(explicit)
        if definition.sort_by and definition.keyed:
            names += [name for name in definition.primary_key if name not in names]
    else:
        names = [f.name for f in definition.schema if pa.types.is_string(f.type)]
        names = _worth_sorting_by(table, names)
        names = [name for name in names if _looks_like_tag(table.column(name))]
    encoded: dict[str, pa.Array] = {}
    keys: list[Key] = []
    for name in names:
        if not table.rows_with(name):
            keys.append(Key(name, np.zeros(table.num_rows, np.uint8), 1, 0))
            continue
        dictionary_form, key = key_of(name, table.column(name))
        if not explicit and key.cardinality > MAX_TAG_CARDINALITY:
            continue
        if dictionary_form is not None:
            encoded[name] = dictionary_form
        keys.append(key)
    if not definition.sort_by:
        keys.sort(key=lambda key: (key.name == "time", key.cardinality))
    if not explicit and _has_sortable_time(table):
        keys.append(key_of("time", table.column("time"))[1])
    return encoded, keys


def _has_sortable_time(table: SparseRows) -> bool:
    index = table.schema.get_field_index("time")
    if index < 0:
        return False
    kind = table.schema.field(index).type
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind)
    )


def _worth_sorting_by(table: SparseRows, names: list[str]) -> list[str]:
    """The columns that most rows have, and a few others: each takes memory for every row."""
    room = max(ABSENT_BYTES, table.nbytes)
    found = []
    for name in names:
        if 2 * table.rows_with(name) < table.num_rows:
            room -= KEY_BYTES * table.num_rows
            if room < 0:
                continue
        found.append(name)
    return found


def _looks_like_tag(column: pa.ChunkedArray) -> bool:
    """Whether a sample repeats itself: encoding text whole would only cost memory."""
    rows = len(column)
    if rows <= SAMPLE_ROWS:
        return True
    numbers = np.linspace(0, rows - 1, SAMPLE_ROWS).astype(np.uint32)
    small = rows < column.num_chunks * MIN_ROWS_A_CHUNK
    sample = column.take(pa.array(numbers)) if small else taken(column, numbers)
    return int(pc.count_distinct(sample).as_py()) * 2 <= SAMPLE_ROWS


def _last_rows(keys: list[Key], definition: TableDefinition) -> npt.NDArray[np.int64]:
    """The last row of each primary key, in sort order."""
    # By key first: in another order equal keys need not be neighbours.
    unique_by = [key for key in keys if key.name in definition.primary_key]
    last = last_of_each_key(argsort(list(unique_by)), unique_by)
    kept = [Key(k.name, k.codes[last], k.span, k.cardinality) for k in keys]
    order: npt.NDArray[np.int64] = last[argsort(kept)]
    return order


def _is_identity(order: npt.NDArray[np.int64], rows: int) -> bool:
    return len(order) == rows and bool((order == np.arange(rows)).all())
