"""A footer's facts of one row group: bounds of its columns, and how large they will be.

Law of this file: pure, on footers that were checked. A bound that cannot be had is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.manifest import ColumnStats
from persist.parquet.stats import stat_value

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value; texts have an offset."""


def decoded_bytes(footer: pq.FileMetaData, index: int, columns: tuple[str, ...]) -> int:
    """The size in memory, about, of some columns of a row group.

    Encoded sizes say little: a column of few texts takes fifty times as much decoded. Where a
    dictionary may hide the length of texts, the bounds tell it.
    """
    group = footer.row_group(index)
    nbytes = 0
    for leaf in range(group.num_columns):
        column = group.column(leaf)
        if column.path_in_schema.split(".")[0] not in columns:
            continue
        width = _WIDTHS.get(column.physical_type, 4)
        if column.physical_type == "BYTE_ARRAY" and column.is_stats_set:
            bounds = (column.statistics.min_raw, column.statistics.max_raw)
            width += max((len(bound) for bound in bounds if bound is not None), default=0)
        nbytes += max(column.total_uncompressed_size, width * column.num_values)
    return nbytes


def leaves_of(footer: pq.FileMetaData) -> Iterator[tuple[pa.Field, range]]:
    """Each column of a file, and the numbers of the leaves that it is stored as."""
    first = 0
    for field in footer.schema.to_arrow_schema():
        count = _leaves(field.type)
        yield field, range(first, first + count)
        first += count


def _leaves(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))


def group_bounds(footer: Any, index: int, schema: pa.Schema) -> dict[str, ColumnStats]:
    """Bounds of the columns of one row group, by their types in ``schema``."""
    found = {}
    group = footer.row_group(index)
    # A leaf inside ``s`` has the path ``s.x``, as a plain column of that name has.
    whole = {f.name for f in footer.schema.to_arrow_schema() if not pa.types.is_nested(f.type)}
    paths = Counter(footer.schema.column(leaf).path for leaf in range(group.num_columns))
    for leaf in range(group.num_columns):
        column = group.column(leaf)
        path = column.path_in_schema
        position = schema.get_field_index(path)
        stats = column.statistics
        if position < 0 or stats is None or path not in whole or paths[path] > 1:
            continue
        kind = schema.field(position).type
        nulls = stats.null_count if stats.has_null_count else None
        low = high = None
        if stats.has_min_max and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
            # The logical values pass through Python's datetime, which has no nanoseconds.
            low, high = stats.min_raw, stats.max_raw
        elif stats.has_min_max:
            low, high = _stat(stats.min, kind), _stat(stats.max, kind)
        found[column.path_in_schema] = ColumnStats(min=low, max=high, nulls=nulls)
    return found


def _stat(value: Any, kind: pa.DataType) -> Any:
    try:
        return stat_value(pa.scalar(value, kind))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
