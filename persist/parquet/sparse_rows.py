"""Rows whose batches each have their own columns; missing columns are null.

    batch 0   time | host |  c1            rows 0 up to 10 000
    batch 1   time | host |       c7       rows 10 000 up to 20 000

An absent column takes no memory, whatever is done with the rows
(tests/persist/parquet/test_sparse_rows.py). A column is absent from a batch that lacks it or in
which it is all null. If all columns are needed side by side, absent ones share one array of nulls
per type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.partitioning import PartitionValues

_OFFSET_BYTES = 4.0


class Nulls:
    """Absent columns of a schema: one array per type, of which all columns are views."""

    def __init__(self, schema: pa.Schema) -> None:
        self._kinds: list[pa.DataType] = []
        numbers: dict[pa.DataType, int] = {}
        self._number: dict[str, int] = {}
        for field in schema:
            number = numbers.setdefault(field.type, len(numbers))
            if number == len(self._kinds):
                self._kinds.append(field.type)
            self._number[field.name] = number
        self._arrays: dict[int, pa.Array] = {}

    def of(self, name: str, rows: int) -> pa.Array:
        """An array of this many nulls for a column."""
        number = self._number[name]
        array = self._arrays.get(number)
        if array is None or len(array) < rows:
            array = self._arrays[number] = pa.nulls(rows, self._kinds[number])
        return array if len(array) == rows else array.slice(0, rows)


@dataclass(frozen=True)
class SparseRows:
    """Rows in order; made by :meth:`of`.

    Attributes:
        schema: All columns, in the order of a table that has them.
        batches: Each has some of the columns, in that order and of these types.
    """

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> SparseRows:
        """The rows of these batches in the columns of this schema; other columns are dropped.

        A differing type is cast.
        """
        places = {name: place for place, name in enumerate(schema.names)}
        return cls(schema, tuple(_narrowed(batch, places, schema) for batch in batches))

    @classmethod
    def of_table(cls, rows: pa.Table | SparseRows) -> SparseRows:
        """The rows in this form; unchanged if they already have it."""
        return rows if isinstance(rows, SparseRows) else cls.of(rows.to_batches(), rows.schema)

    @cached_property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the columns that exist; absent ones have none."""
        return sum(int(batch.nbytes) for batch in self.batches)

    @cached_property
    def parts(self) -> Mapping[str, Mapping[int, pa.Array]]:
        """The values of each column by batch number, ascending, without absent ones."""
        found: dict[str, dict[int, pa.Array]] = {}
        for number, batch in enumerate(self.batches):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                found.setdefault(name, {})[number] = column
        return found

    @cached_property
    def uniform(self) -> bool:
        """Whether all batches have the same columns."""
        return all(batch.schema.equals(self.batches[0].schema) for batch in self.batches)

    @property
    def absent(self) -> list[pa.Field]:
        """Columns that no batch has."""
        return [field for field in self.schema if field.name not in self.parts]

    def rows_with(self, name: str) -> int:
        """The number of rows in batches that have the column."""
        return sum(len(column) for column in self.parts.get(name, {}).values())

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows. For few columns only, because absent rows take memory."""
        return self.table([name]).column(0)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """A table of these columns, or all, of all rows; absent ones share their memory."""
        schema = self.schema
        if names is not None:
            schema = pa.schema([schema.field(name) for name in names])
        nulls = Nulls(schema)
        counts = [batch.num_rows for batch in self.batches]
        ends = np.cumsum(counts, dtype=np.int64) if counts else np.zeros(0, np.int64)
        columns = []
        for field in schema:
            chunks, end = [], 0
            for number, column in self.parts.get(field.name, {}).items():
                start = int(ends[number]) - len(column)
                if start > end:
                    chunks.append(nulls.of(field.name, start - end))
                chunks.append(column)
                end = start + len(column)
            if end < self.num_rows:
                chunks.append(nulls.of(field.name, self.num_rows - end))
            columns.append(pa.chunked_array(chunks, field.type))
        if not columns:
            return pa.table({"": pa.nulls(self.num_rows)}).select([])
        return pa.Table.from_arrays(columns, schema=schema)

    def slice(self, start: int, rows: int) -> SparseRows:
        """A range of the rows."""
        found, stop = [], start + rows
        for batch in self.batches:
            if batch.num_rows and start < batch.num_rows and stop > 0:
                first = max(0, start)
                found.append(batch.slice(first, min(batch.num_rows, stop) - first))
            start, stop = start - batch.num_rows, stop - batch.num_rows
        return SparseRows(self.schema, tuple(found))

    def filter(self, mask: npt.NDArray[np.bool_]) -> SparseRows:
        """The rows for which the mask is true."""
        found, start = [], 0
        for batch in self.batches:
            own = mask[start : start + batch.num_rows]
            start += batch.num_rows
            if own.all():
                found.append(batch)
            elif own.any():
                found.append(batch.filter(pa.array(own)))
        return SparseRows(self.schema, tuple(found))


def concatenated(rows: Sequence[SparseRows]) -> SparseRows:
    """All rows, one after another; the first item has the schema."""
    return SparseRows(rows[0].schema, tuple(batch for each in rows for batch in each.batches))


def null_bytes(kind: pa.DataType) -> float:
    """About the bytes of a null of this type in an array of its own."""
    if pa.types.is_struct(kind):
        return sum(null_bytes(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return max(0.125, float(kind.bit_width) / 8)
    except ValueError:
        return _OFFSET_BYTES


def _narrowed(
    batch: pa.RecordBatch, places: Mapping[str, int], schema: pa.Schema
) -> pa.RecordBatch:
    kept = [
        (places[name], column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name in places and column.null_count < len(column)
    ]
    kept.sort(key=lambda each: each[0])
    fields = [schema.field(place) for place, _ in kept]
    if not kept:
        return rows_alone(batch.num_rows)
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for (_, column), field in zip(kept, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def rows_alone(rows: int) -> pa.RecordBatch:
    """A batch of this many rows without any column."""
    found = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(found)


SplitRows = list[tuple[PartitionValues, pa.RecordBatch]]
"""Rows of one batch by partition, from ``persist.partitioning.split_batch``."""


class PartitionedRows:
    """Holds rows of one schema by partition until a file is made of them. One thread at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._held: defaultdict[PartitionValues, list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: dict[PartitionValues, int] = {}
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, values: PartitionValues, rows: pa.RecordBatch, *, whole: bool = True) -> int:
        """Hold further rows of a partition; return the bytes held of it.

        Args:
            whole: the rows are not a view of a larger batch; a view would keep the whole batch in
                memory and is copied.
        """
        if not whole:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        nbytes = int(rows.nbytes)
        self._held[values].append(rows)
        self._sizes[values] = size = self._sizes.get(values, 0) + nbytes
        self.nbytes += nbytes
        return size

    def largest(self) -> PartitionValues:
        """The partition with the most bytes. ``ValueError`` if nothing is held."""
        return max(self._sizes, key=self._sizes.__getitem__)

    def partitions(self) -> list[PartitionValues]:
        """The partitions of the held rows."""
        return list(self._sizes)

    def take(self, values: PartitionValues) -> SparseRows:
        """Remove and return the rows of a partition."""
        self.nbytes -= self._sizes.pop(values)
        return SparseRows.of(self._held.pop(values), self._schema)
