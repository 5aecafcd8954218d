"""Bounds of columns as the manifest records them.

Law of this file: a bound is never tighter than the values. Where a column has no order, or a value
that compares with nothing, or a bound too long to keep, there is no bound at all.
"""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats

_STATS_TEXT = 64
"""The longest text that is kept as a bound; a longer one leaves that bound unknown."""


class StatsCollector:
    """The bounds of a file's columns, from its rows piece by piece."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: _Bounds() for field in schema}

    def add(self, table: pa.Table) -> None:
        """Count in more rows of the schema."""
        for name, bounds in self._columns.items():
            bounds.add(table.column(name))

    def stats(self) -> dict[str, ColumnStats]:
        """Bounds of each column as JSON values, ``None`` where there are none."""
        return {name: bounds.stats() for name, bounds in self._columns.items()}


def column_stats(table: pa.Table) -> dict[str, ColumnStats]:
    """Bounds of each column as JSON values, ``None`` where a type has no order or is too long."""
    collector = StatsCollector(table.schema)
    collector.add(table)
    return collector.stats()


class _Bounds:
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
            # NaN compares with nothing: bounds that leave it out would prune rows away.
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
    """The different values that a dictionary column really has, decoded."""
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
