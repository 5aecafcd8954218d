"""Rows of one file in their final order: tags by rising cardinality, then time.

Law of this file: the order is total over the named columns with nulls last, ties keep the order of
arrival, and no row is lost; in a keyed table only the last row of a key stays, and none of a key
that was deleted last.

Strings are not compared row by row: each is dictionary-encoded once, the dictionary alone is
sorted, and what remains is a sort of integers. Where the combined codes and the last column fit
into 63 bits, that is one integer a row. Codes are as narrow as they can be, and each is let go of
as soon as it is part of that integer: a sort takes less memory than the rows that it orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.parquet.sparse_rows import SparseRows
from persist.parquet.take import MIN_ROWS_A_CHUNK, RowPicker, taken
from persist.table import DELETED, TableDefinition

Codes = npt.NDArray[np.int64]

MAX_TAG_CARDINALITY = 65_536
"""Beyond this many different values a string is text, not a tag: sorting by it groups nothing."""

SAMPLE_ROWS = 8192

ABSENT_BYTES, KEY_BYTES = 1 << 20, 8
"""What sorting by columns that most rows lack may take, if the rows are not more; of each row."""

LONG_RUN = 16
"""Rows that stand in order one after another, on average, where it pays to merge them."""

PIECE_ROWS = 1 << 16
_BITS = 62
_LARGEST = np.iinfo(np.int64).max


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
        """As many of so many rows as are not larger side by side, but for absent columns; or one.

        Where all batches have the same columns it is all of them.
        """
        while rows > 1 and self._arrived.bytes_of(start, start + rows, self.arrivals) > most_bytes:
            rows = -(-rows // 2)
        return rows


@dataclass(frozen=True, slots=True)
class _Key:
    """One column as integers that compare as its values do; ``span`` is above the largest."""

    name: str
    codes: npt.NDArray[np.integer]
    span: int
    cardinality: int


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
        order = _last_rows(keys, definition) if definition.keyed else _argsort(keys)
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
) -> tuple[dict[str, pa.Array], list[_Key]]:
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
    keys: list[_Key] = []
    for name in names:
        if not table.rows_with(name):
            keys.append(_Key(name, np.zeros(table.num_rows, np.uint8), 1, 0))
            continue
        dictionary_form, key = _key_of(name, table.column(name))
        if not explicit and key.cardinality > MAX_TAG_CARDINALITY:
            continue
        if dictionary_form is not None:
            encoded[name] = dictionary_form
        keys.append(key)
    if not definition.sort_by:
        keys.sort(key=lambda key: (key.name == "time", key.cardinality))
    if not explicit and _has_sortable_time(table):
        keys.append(_key_of("time", table.column("time"))[1])
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


def _key_of(name: str, column: pa.ChunkedArray) -> tuple[pa.Array | None, _Key]:
    """Integers that sort as the column does, and its dictionary form where it has one."""
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        numbers = _plain_numbers(column)
        if numbers is not None:
            return None, _shifted(name, numbers)
    # Chunk by chunk, with one dictionary for all: texts are never joined.
    encoded = _joined(column.dictionary_encode())
    ranks = _ranks(encoded.dictionary)
    count = len(encoded.dictionary)
    indices = encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)
    codes = np.append(ranks, count).astype(np.min_scalar_type(count))[indices]
    key = _Key(name, codes, count + 1, count)
    return (encoded if pa.types.is_string(column.type) else None), key


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """One array, without a copy where there is one already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        # pyarrow makes no dictionary array of nothing, whatever its values' type.
        empty = pa.nulls(0, getattr(column.type, "value_type", column.type))
        return empty.dictionary_encode() if pa.types.is_dictionary(column.type) else empty
    return column.combine_chunks()


def _plain_numbers(column: pa.ChunkedArray) -> Codes | None:
    """Each number less the lowest; nulls are one above the highest. None where that is too much."""
    if pa.types.is_uint64(column.type):
        return None
    shifted = np.zeros(len(column), dtype=np.int64)
    if column.null_count == len(column):
        return shifted
    low, high = (_number(value) for value in pc.min_max(column).values())
    if high - low >= 1 << _BITS or high == _LARGEST:
        return None
    end = 0
    # Chunk by chunk: no other copy is held.
    for chunk in column.chunks:
        start, end = end, end + len(chunk)
        whole = chunk.view(pa.int64()) if pa.types.is_timestamp(chunk.type) else chunk
        if whole.null_count:
            whole = pc.fill_null(whole.cast(pa.int64()), high + 1)
        np.subtract(
            whole.to_numpy(zero_copy_only=False), low, out=shifted[start:end], dtype=np.int64
        )
    return shifted


def _number(value: pa.Scalar) -> int:
    """The integer that a number or a time is stored as."""
    return int(value.value if isinstance(value, pa.TimestampScalar) else value.as_py())


def _shifted(name: str, numbers: Codes) -> _Key:
    span = int(numbers.max()) + 1 if len(numbers) else 1
    return _Key(name, numbers, span, min(span, len(numbers)))


def _ranks(dictionary: pa.Array) -> npt.NDArray[np.int64]:
    order = pc.sort_indices(dictionary).to_numpy(zero_copy_only=False)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _argsort(keys: list[_Key]) -> Codes:
    """Stable order by the first key, then the second, …; keys are packed while they fit 62 bits.

    Takes the keys out of the list, so that their memory is free once they are packed.
    """
    packed: list[tuple[Codes, int]] = []
    while keys:
        key = keys.pop(0)
        if packed and packed[-1][1] * key.span < 1 << _BITS:
            codes, span = packed.pop()
            codes *= key.span
            codes += key.codes
            packed.append((codes, span * key.span))
        else:
            packed.append((key.codes.astype(np.int64), key.span))
        del key
    if len(packed) > 1:
        return np.lexsort([codes for codes, _ in reversed(packed)]).astype(np.int64)
    [(codes, span)] = packed
    if bool((codes[1:] >= codes[:-1]).all()):
        return np.arange(len(codes), dtype=np.int64)
    return _stable(codes, span)


def _stable(codes: Codes, span: int) -> Codes:
    """The stable order of the codes, whose memory is used for it."""
    rows = len(codes)
    if _falls(codes) < rows // LONG_RUN:
        # Merging long runs takes a seventh of sorting: a table's rows, and few that touch them.
        return np.argsort(codes, kind="stable")
    if span * rows < 1 << _BITS:
        # With the row number as last digit every code is unique: the fast sort is stable too.
        return _in_order(codes, np.arange(rows, dtype=np.int64))
    # numpy's stable sort is four times slower than its fast one: sort fast, then put equal codes
    # back into order by run number and row number.
    order = np.argsort(codes)
    rises = _rises(codes, order)
    if bool(rises.all()):
        return order
    codes[:1] = 0
    np.cumsum(rises, out=codes[1:])
    return _in_order(codes, order)


def _rises(codes: Codes, order: Codes) -> npt.NDArray[np.bool_]:
    """Which of the codes, in this order, are higher than the one before; all but the first."""
    rises = np.empty(len(order) - 1, dtype=bool)
    # Piece by piece: no other copy of the codes is held.
    for start in range(0, len(rises), PIECE_ROWS):
        piece = codes[order[start : start + PIECE_ROWS + 1]]
        np.greater(piece[1:], piece[:-1], out=rises[start : start + PIECE_ROWS])
    return rises


def _falls(codes: Codes) -> int:
    """How often a code is followed by a lower one."""
    return int(np.count_nonzero(codes[1:] < codes[:-1]))


def _in_order(codes: Codes, numbers: Codes) -> Codes:
    """The row numbers by code, then by number; in the memory of the codes."""
    codes *= len(codes)
    codes += numbers
    codes.sort()
    codes %= len(codes)
    return codes


def _last_rows(keys: list[_Key], definition: TableDefinition) -> npt.NDArray[np.int64]:
    """The last row of each primary key, in sort order."""
    # By key first: in another order equal keys need not be neighbours.
    unique_by = [key for key in keys if key.name in definition.primary_key]
    last = _last_of_each_key(_argsort(list(unique_by)), unique_by)
    kept = [_Key(k.name, k.codes[last], k.span, k.cardinality) for k in keys]
    order: npt.NDArray[np.int64] = last[_argsort(kept)]
    return order


def _last_of_each_key(order: npt.NDArray[np.int64], keys: list[_Key]) -> npt.NDArray[np.int64]:
    """The last of neighbours with equal keys: the one written last, as the sort is stable."""
    if len(order) < 2:
        return order
    differs = np.zeros(len(order) - 1, dtype=bool)
    for key in keys:
        ordered = key.codes[order]
        differs |= ordered[1:] != ordered[:-1]
    last: npt.NDArray[np.int64] = order[np.append(differs, True)]
    return last


def _is_identity(order: npt.NDArray[np.int64], rows: int) -> bool:
    return len(order) == rows and bool((order == np.arange(rows)).all())
