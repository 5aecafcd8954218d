"""Bounds of columns as the manifest records them, and the leaves of a file that get statistics.

A bound is never tighter than the values. A column without an order, or with a value that compares
with nothing, has no bounds; a bound too long to keep is left out.

Parquet's writers leave NaN out of min and max, while Spark and DuckDB treat it as greater than
every number and equal to itself, so they would skip ``3, NaN, 3`` for ``!= 3`` or ``> 3``. Leaves
that contain NaN therefore get no statistics (tests/persist/parquet/test_leaf_stats.py). A leaf is
named as in Parquet: ``s.v`` for a column ``s`` of structs, ``l.list.element`` for lists.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats
from persist.parquet.sparse_rows import SparseRows

_STATS_TEXT = 64
"""The longest text that is kept as a bound; for a longer one the bound is unknown."""


class StatsCollector:
    """The bounds of a file's columns, collected block by block."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _ColumnBounds() for field in schema}

    def add(self, table: pa.Table) -> None:
        """Include further rows of the schema."""
        for name, bounds in self._columns.items():
            bounds.add(table.column(name))

    def stats(self) -> dict[str, ColumnStats]:
        """Bounds of each column as JSON values, ``None`` if unknown."""
        return {name: bounds.stats() for name, bounds in self._columns.items()}


def column_stats(table: pa.Table) -> dict[str, ColumnStats]:
    """Bounds of each column as JSON values, ``None`` if unknown."""
    collector = StatsCollector(table.schema)
    collector.add(table)
    return collector.stats()


class _ColumnBounds:
    """The bounds of one column so far."""

    def __init__(self) -> None:
        self._nulls = 0
        self._extremes: list[pa.Scalar] = []
        """Lowest and highest value so far; empty without values."""
        self._ordered = True

    def add(self, column: pa.ChunkedArray) -> None:
        self._nulls += column.null_count
        if not self._ordered or column.null_count == len(column):
            return
        if pa.types.is_dictionary(column.type):
            column = _used_values(column)
        if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
            self._ordered = False
            return
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            # NaN compares with nothing: bounds without it would prune matching rows.
            self._ordered = False
            return
        values = pa.array([*self._extremes, *pc.min_max(column).values()], column.type)
        self._extremes = list(pc.min_max(values).values())

    def stats(self) -> ColumnStats:
        if not self._ordered or not self._extremes:
            return ColumnStats(min=None, max=None, nulls=self._nulls)
        low, high = self._extremes
        return ColumnStats(min=stat_value(low), max=stat_value(high), nulls=self._nulls)


def _used_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The distinct values that a dictionary column really uses, decoded."""
    chunks = column.unify_dictionaries().chunks
    used = pc.unique(pa.chunked_array([chunk.indices for chunk in chunks])).drop_null()
    return pa.chunked_array([chunks[0].dictionary.take(used)])


def stat_value(scalar: pa.Scalar) -> str | int | float | bool | None:
    """A bound as JSON: numbers as they are, times as integers in their unit, the rest as text."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return int(scalar.value)
    value: Any = scalar.as_py()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode() if len(value) <= _STATS_TEXT else None
    if isinstance(value, str):
        return value if len(value.encode()) <= _STATS_TEXT else None
    if isinstance(value, dt.date):
        return value.isoformat()
    return None


Leaf = tuple[str, pa.ChunkedArray]


def leaves_without_nan(rows: SparseRows) -> list[str] | bool:
    """The paths of leaves of these rows without NaN, True for all; for ``write_statistics``."""
    holding = {
        path
        for name, parts in rows.parts.items()
        if has_floats(rows.schema.field(name).type)
        for path, column in _leaves(name, pa.chunked_array([*parts.values()]))
        if _holds_nan(column)
    }
    if not holding:
        return True
    # A column named ``s.v`` has the same path as ``v`` inside ``s``.
    return [path for path, _ in _leaves_of(rows.schema) if path not in holding]


def leaves_without_floats(schema: pa.Schema) -> list[str] | bool:
    """The paths of leaves that cannot contain NaN, for rows that are not known yet."""
    if not any(has_floats(field.type) for field in schema):
        return True
    found = _leaves_of(schema)
    floats = {path for path, column in found if has_floats(column.type)}
    return [path for path, _ in found if path not in floats]


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of this type contain floating-point numbers, at any depth."""
    if pa.types.is_dictionary(kind):
        return has_floats(kind.value_type)
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _leaves_of(schema: pa.Schema) -> list[Leaf]:
    """The leaves of a schema, from a table without rows."""
    empty = schema.empty_table()
    return [leaf for field in schema for leaf in _leaves(field.name, empty[field.name])]


def _leaves(path: str, column: pa.ChunkedArray) -> Iterator[Leaf]:
    """The leaves of a column, with the names that pyarrow gives them in Parquet."""
    kind = column.type
    if pa.types.is_map(kind):
        for name, index in (("key", 0), ("value", 1)):
            parts = [(chunk.keys, chunk.items)[index] for chunk in column.chunks]
            inner = (kind.key_type, kind.item_type)[index]
            yield from _leaves(f"{path}.key_value.{name}", pa.chunked_array(parts, inner))
    elif pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", inner)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", pc.list_flatten(column))
    else:
        yield path, column


def _holds_nan(column: pa.ChunkedArray) -> bool:
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array(
            [chunk.dictionary for chunk in column.chunks], column.type.value_type
        )
    if not pa.types.is_floating(column.type):
        return False
    return any(pc.any(pc.is_nan(chunk)).as_py() for chunk in column.chunks)
