"""Sorted rows to the bytes of Parquet files, with what the manifest records about them.

Law of this file: zstd, dictionaries where they pay, statistics and page index, row groups of 128 Ki
rows; nanoseconds only where the table asks for them. The Arrow schema is not stored: types that
Parquet has are read the same by Spark, DuckDB, pandas and pyarrow, and the manifest has the rest.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.manifest import ColumnStats
from persist.sorting import sort_rows
from persist.table import TableDefinition

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 << 20
_STATS_TEXT = 64
"""Longest text kept as a bound in the manifest; a longer one leaves that bound unknown."""


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A Parquet file in memory: its bytes, rows and per-column bounds."""

    data: pa.Buffer
    rows: int
    stats: dict[str, ColumnStats]


def encode_sorted(
    table: pa.Table, definition: TableDefinition, *, metadata: Mapping[str, str], target_bytes: int
) -> Iterator[EncodedFile]:
    """Sort (and deduplicate, where keyed) rows and encode them.

    Args:
        table: rows in order of arrival, with the definition's schema.
        metadata: key-value metadata of each file; ``sort_order`` and ``rows`` are added.
        target_bytes: a file that would be larger, by the size of its rows in memory, is cut.

    Yields:
        Files in sort order, each with at least one row.
    """
    ordered = sort_rows(table, definition)
    rows = ordered.table.num_rows
    files = max(1, -(-table.nbytes // max(1, target_bytes)))
    step = max(1, -(-rows // files))
    for start in range(0, rows, step):
        part = ordered.table.slice(start, step)
        facts = {**metadata, "sort_order": ",".join(ordered.order), "rows": str(part.num_rows)}
        yield EncodedFile(encode(part, facts), part.num_rows, column_stats(part))


def encode(table: pa.Table, metadata: Mapping[str, str]) -> pa.Buffer:
    """One Parquet file over the rows as they are ordered."""
    # Parquet has no type for a column without any: it reads as null when the schema names it.
    typed = [
        name for name in table.column_names if not pa.types.is_null(table.schema.field(name).type)
    ]
    table = table.select(typed)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=_dictionary_columns(table),
        write_statistics=True,
        write_page_index=True,
        store_schema=False,
        version="2.6",
    ) as writer:
        writer.write_table(table, row_group_size=_row_group_rows(table))
        writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()


def _row_group_rows(table: pa.Table) -> int:
    """128 Ki, fewer where rows are wide: a reader decodes a group as a whole."""
    average = max(1, int(table.nbytes) // max(1, int(table.num_rows)))
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // average))


def _dictionary_columns(table: pa.Table) -> list[str]:
    """Columns worth a dictionary: strings and small types; sorted or random numbers are not."""
    return [
        field.name
        for field in table.schema
        if not (pa.types.is_floating(field.type) or pa.types.is_timestamp(field.type))
        and not pa.types.is_nested(field.type)
    ]


def column_stats(table: pa.Table) -> dict[str, ColumnStats]:
    """Bounds of each column as JSON values, ``None`` where a type has no order or is too long."""
    return {name: _stats(table.column(name)) for name in table.column_names}


def _stats(column: pa.ChunkedArray) -> ColumnStats:
    nulls, rows, kind = column.null_count, len(column), column.type
    if pa.types.is_dictionary(kind):
        column = _used_values(column)
        kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or nulls == rows:
        return ColumnStats(min=None, max=None, nulls=nulls)
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        # NaN compares with nothing: bounds that leave it out would prune rows away.
        return ColumnStats(min=None, max=None, nulls=nulls)
    low, high = pc.min_max(column).values()
    return ColumnStats(min=stat_value(low), max=stat_value(high), nulls=nulls)


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
