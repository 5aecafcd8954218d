"""Orders the rows of one file (tags by rising cardinality, then time), and picks them in that
order.

The order is total over the named columns with nulls last; ties keep the order of arrival, and no
row is lost. In a keyed table only the last row of a key stays, and none if it was deleted last
(tests/persist/parquet/test_sort.py).

Rows are picked block by block without a second copy of the table: batch by batch in storage order,
then permuted. Only if batches are so small that this costs more than a copy is a column joined
once. Columns that none of the picked rows has share one array of nulls per type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.parquet.sort_keys import Key, argsort, key_of, last_of_each_key
from persist.parquet.sparse_rows import Nulls, SparseRows, null_bytes
from persist.table import DELETED, TableDefinition

Numbers = npt.NDArray[np.uint32]
Touched = dict[int, tuple[int, int, pa.Array]]
"""The batches with some of the picked rows: their range among all picked rows in ascending order,
and their row numbers in the batch.
"""

MIN_ROWS_A_CHUNK = 256
"""Taking fewer rows at a time costs more than joining the chunks first."""

MAX_JOINED_BYTES = 1 << 30
"""One array holds less than 2 GiB of text."""


class RowPicker:
    """Rows, some of whose columns are given in another form."""

    def __init__(self, rows: SparseRows, instead: dict[str, pa.Array]) -> None:
        self.rows = rows.num_rows
        self._names = rows.schema.names
        self._nulls = Nulls(rows.schema)
        self._most = 0
        self._counts = np.array([batch.num_rows for batch in rows.batches], np.int64)
        self._ends = np.cumsum(self._counts)
        self._whole = dict(instead)
        """Columns that are one array."""
        self._parts = {name: parts for name, parts in rows.parts.items() if name not in self._whole}
        self._joined: dict[str, _Joined] = {}
        self._sizes = None if rows.uniform else _ColumnSizes(rows)

    def stretch(self, start: int, stop: int) -> pa.Table:
        """The rows from ``start`` up to ``stop``, in storage order."""
        columns = [pa.chunked_array([*self._lying(name, start, stop)]) for name in self._names]
        return pa.Table.from_arrays(columns, names=self._names)

    def _lying(self, name: str, start: int, stop: int) -> Iterator[pa.Array]:
        if name in self._whole:
            yield self._whole[name].slice(start, stop - start)
            return
        end = start
        for number, column in self._parts.get(name, {}).items():
            last = int(self._ends[number])
            first = last - len(column)
            if last <= start:
                continue
            if first >= stop:
                break
            if first > end:
                yield self._nulls.of(name, first - end)
            end = min(last, stop)
            begin = max(first, start)
            yield column.slice(begin - first, end - begin)
        if end < stop or end == start:
            yield self._nulls.of(name, stop - end)

    def pick(self, numbers: Numbers) -> pa.Table:
        """The rows of these numbers, in this order."""
        # Number and place in one integer: sorting those is several times faster than argsort.
        both = (numbers.astype(np.uint64) << np.uint64(32)) | np.arange(
            len(numbers), dtype=np.uint64
        )
        both.sort()
        ascending = (both >> np.uint64(32)).astype(np.uint32)
        places = np.empty(len(numbers), dtype=np.uint32)
        places[both.astype(np.uint32)] = np.arange(len(numbers), dtype=np.uint32)
        # The largest pick so far: a short last pick of a file is not worth a copy of the table.
        self._most = max(self._most, len(numbers))
        touched = self._touched(ascending)
        at, asked = pa.array(places), pa.array(numbers)
        picked = []
        for name in self._names:
            self._join_if_small(name)
            if name in self._whole:
                picked.append(self._whole[name].take(asked))
            elif name in self._joined:
                picked.append(self._joined[name].take(numbers))
            else:
                picked.append(self._taken(name, touched, at))
        return pa.Table.from_arrays(picked, names=self._names)

    def bytes_of(self, start: int, stop: int, numbers: Numbers | None) -> int:
        """About the bytes of these rows side by side, without columns that none of them has.

        0 if all rows have the same columns.

        Args:
            numbers: the order of the rows, instead of storage order.
        """
        if self._sizes is None:
            return 0
        if numbers is None:
            first, last = np.searchsorted(self._ends, [start, stop - 1], "right").tolist()
            batches = np.arange(first, last + 1)
        else:
            batches = np.unique(np.searchsorted(self._ends, numbers[start:stop], "right"))
        return int((stop - start) * self._sizes.of(batches))

    def _touched(self, ascending: Numbers) -> Touched:
        cuts = np.searchsorted(ascending, self._ends).tolist()
        found: Touched = {}
        first, begin = 0, 0
        for number, (end, cut) in enumerate(zip(self._ends.tolist(), cuts, strict=True)):
            if cut > first:
                own = pa.array(ascending[first:cut] - np.uint32(begin))
                found[number] = (first, cut, own)
            first, begin = cut, end
        return found

    def _taken(self, name: str, touched: Touched, at: pa.Array) -> pa.Array:
        parts = self._parts.get(name, {})
        fewer: Mapping[int, object] = parts if len(parts) <= len(touched) else touched
        pieces, end = [], 0
        for number in fewer:
            if number not in parts or number not in touched:
                continue
            first, cut, own = touched[number]
            if first > end:
                pieces.append(self._nulls.of(name, first - end))
            pieces.append(parts[number].take(own))
            end = cut
        if not pieces:
            return self._nulls.of(name, len(at))
        if end < len(at):
            pieces.append(self._nulls.of(name, len(at) - end))
        return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)).take(at)

    def _join_if_small(self, name: str) -> None:
        parts = self._parts.get(name)
        if parts is None or name in self._whole or name in self._joined:
            return
        one_batch = len(parts) == 1 and len(self._counts) == 1
        small = len(parts) > 1 and self._most < len(parts) * MIN_ROWS_A_CHUNK
        if one_batch or (small and sum(part.nbytes for part in parts.values()) < MAX_JOINED_BYTES):
            values = [*parts.values()]
            joined = values[0] if one_batch else pa.concat_arrays(values)
            if len(joined) == self.rows:
                self._whole[name] = joined
            else:
                self._joined[name] = _Joined(joined, self._ends, self._counts, [*parts])


class _Joined:
    """The values of a column that not all batches have, and their positions."""

    def __init__(
        self,
        values: pa.Array,
        ends: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        batches: list[int],
    ) -> None:
        self._values = values
        self._ends = ends[batches]
        self._starts = self._ends - counts[batches]
        # The number of rows before each batch that lack the column.
        self._before = self._starts - np.concatenate(([0], np.cumsum(counts[batches])[:-1]))

    def take(self, numbers: Numbers) -> pa.Array:
        asked = numbers.astype(np.int64)
        batch = np.minimum(np.searchsorted(self._ends, asked, "right"), len(self._ends) - 1)
        absent = (asked < self._starts[batch]) | (asked >= self._ends[batch])
        return self._values.take(pa.array(asked - self._before[batch], mask=absent))


class _ColumnSizes:
    """The bytes per row of each column, and which batches have which columns."""

    def __init__(self, rows: SparseRows) -> None:
        names = rows.schema.names
        numbers = {name: number for number, name in enumerate(names)}
        self._bytes = np.zeros(len(names))
        for name, parts in rows.parts.items():
            count = sum(len(part) for part in parts.values())
            average = sum(part.nbytes for part in parts.values()) / max(1, count)
            self._bytes[numbers[name]] = max(average, null_bytes(rows.schema.field(name).type))
        column_sets: dict[tuple[str, ...], int] = {}
        names_of = (tuple(batch.schema.names) for batch in rows.batches)
        set_of = [column_sets.setdefault(names, len(column_sets)) for names in names_of]
        self._set_of = np.array(set_of, np.int64)
        self._columns = [np.array([numbers[n] for n in names], np.int64) for names in column_sets]

    def of(self, batches: npt.NDArray[np.int64]) -> float:
        """The bytes of a row with the columns of all these batches."""
        column_sets = np.unique(self._set_of[batches]).tolist()
        columns = np.unique(np.concatenate([self._columns[number] for number in column_sets]))
        return float(self._bytes[columns].sum())


def taken(column: pa.ChunkedArray, ascending: Numbers) -> pa.Array:
    """The values of these rows, in ascending order; Arrow's own take would join all chunks
    first.
    """
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    cuts = np.searchsorted(ascending, ends).tolist()
    pieces = []
    first, begin = 0, 0
    for chunk, end, cut in zip(column.chunks, ends.tolist(), cuts, strict=True):
        if cut > first:
            pieces.append(chunk.take(pa.array(ascending[first:cut] - np.uint32(begin))))
        first, begin = cut, end
    return pa.concat_arrays(pieces)


MAX_TAG_CARDINALITY = 65_536
"""A string column with more distinct values is text, not a tag: sorting by it groups nothing."""

SAMPLE_ROWS = 8192

ABSENT_BYTES, KEY_BYTES = 1 << 20, 8
"""The memory for sort keys that most rows lack, unless the rows take more; a key's bytes per
row.
"""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows in file order, and the columns that they are ordered by."""

    order: tuple[str, ...]
    arrivals: npt.NDArray[np.uint32] | None
    """The position in order of arrival of each row; ``None`` if the order is unchanged."""
    _arrived: RowPicker

    @property
    def rows(self) -> int:
        """The number of rows: fewer than arrived, if keyed."""
        return self._arrived.rows if self.arrivals is None else len(self.arrivals)

    def slice(self, start: int = 0, rows: int | None = None) -> pa.Table:
        """A range of the rows; without ``rows`` up to the last."""
        stop = self.rows if rows is None else min(self.rows, start + rows)
        if self.arrivals is None:
            return self._arrived.stretch(start, stop)
        return self._arrived.pick(self.arrivals[start:stop])

    def fitting(self, start: int, rows: int, most_bytes: int) -> int:
        """The number of rows from ``start``, up to ``rows``, that take at most ``most_bytes``; at
        least 1.

        Absent columns do not count. If all batches have the same columns, it is ``rows``.
        """
        while rows > 1 and self._arrived.bytes_of(start, start + rows, self.arrivals) > most_bytes:
            rows = -(-rows // 2)
        return rows


def sort_rows(rows: pa.Table | SparseRows, definition: TableDefinition) -> Sorted:
    """Order the rows of a table of the definition's schema.

    Args:
        rows: in order of arrival, chunks of any size; with a column :data:`DELETED` if some of them
            delete.

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
    """The table's own columns, and which of the rows delete; None if none can."""
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
    """Whether a sample has repetitions: dictionary-encoding text would only cost memory."""
    rows = len(column)
    if rows <= SAMPLE_ROWS:
        return True
    numbers = np.linspace(0, rows - 1, SAMPLE_ROWS).astype(np.uint32)
    small = rows < column.num_chunks * MIN_ROWS_A_CHUNK
    sample = column.take(pa.array(numbers)) if small else taken(column, numbers)
    return int(pc.count_distinct(sample).as_py()) * 2 <= SAMPLE_ROWS


def _last_rows(keys: list[Key], definition: TableDefinition) -> npt.NDArray[np.int64]:
    """The last row of each primary key, in sort order."""
    # By key first, because in another order equal keys need not be neighbours.
    unique_by = [key for key in keys if key.name in definition.primary_key]
    last = last_of_each_key(argsort(list(unique_by)), unique_by)
    kept = [Key(k.name, k.codes[last], k.span, k.cardinality) for k in keys]
    order: npt.NDArray[np.int64] = last[argsort(kept)]
    return order


def _is_identity(order: npt.NDArray[np.int64], rows: int) -> bool:
    return len(order) == rows and bool((order == np.arange(rows)).all())
