"""Rows of Parquet files without the columns that have no values: those are told by the footer.

Law of this file: a column of which a row group has nothing but nulls is not decoded, where that can
be told: by its statistics, or where it is nested by what the file says of itself. Blocks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from persist.parquet.encode import NULL_COLUMNS
from persist.parquet.row_group_stats import leaves_of
from persist.parquet.sparse_rows import SparseRows


def columns_with_values(
    footer: pq.FileMetaData, index: int, columns: Collection[str] | None = None
) -> list[str]:
    """The columns of a row group, of all or these, that may have values, in the file's order."""
    group, found = footer.row_group(index), []
    asked = None if columns is None else frozenset(columns)
    null = _null_columns(footer)
    for field, leaves in leaves_of(footer):
        if (asked is not None and field.name not in asked) or field.name in null:
            continue
        if not pa.types.is_nested(field.type):
            chunk = group.column(leaves.start)
            stats = chunk.statistics if chunk.is_stats_set else None
            if stats is not None and stats.has_null_count and stats.null_count >= group.num_rows:
                continue
        found.append(field.name)
    return found


def sparse_rows(parquet: pq.ParquetFile, schema: pa.Schema | None = None) -> SparseRows:
    """All rows of an open file.

    Args:
        schema: the columns of the rows, with their types; the file's own by default.
    """
    own = parquet.schema_arrow if schema is None else schema
    batches = [batch for table in _tables(parquet, own) for batch in table.to_batches()]
    return SparseRows.of(batches, own)


def _tables(parquet: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.Table]:
    footer, wanted = parquet.metadata, set(schema.names)
    groups = [
        (tuple(columns_with_values(footer, index, wanted)), index)
        for index in range(footer.num_row_groups)
    ]
    for columns, same in groupby(groups, key=lambda each: each[0]):
        numbers = [index for _, index in same]
        found = parquet.read_row_groups(numbers, columns=[*columns], use_threads=False)
        if not columns:
            rows = sum(footer.row_group(index).num_rows for index in numbers)
            found = pa.table({"": pa.nulls(rows)})
        yield found


def _null_columns(footer: pq.FileMetaData) -> frozenset[str]:
    said = (footer.metadata or {}).get(NULL_COLUMNS.encode())
    return frozenset() if said is None else frozenset(json.loads(said))
