"""Dates and timestamps that DuckDB cannot keep. They are refused with their column.

DuckDB shows the largest and the smallest value of each type as infinity. Microseconds before
290309-12-22 BC cannot be printed at all: the attempt invalidates the database
(``tests/followers/test_duckdb_types.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingester.client.errors import InvalidRequest

_LAST, _LAST_DAY = 2**63 - 1, 2**31 - 1
_FIRST_US = -9_223_372_022_400_000_000


def check_times(rows: pa.Table) -> None:
    """Check all dates and timestamps, at any depth.

    Raises:
        InvalidRequest: DuckDB would keep a value as another.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for chunk in column.chunks:
            for times in _times(chunk):
                _check(name, times)


def may_have_unfit_times(path: str) -> bool:
    """Whether the statistics of a Parquet file leave it open that :func:`check_times` fails."""
    file = pq.read_metadata(path)
    for place in range(file.num_columns):
        kind = file.schema.column(place).logical_type.type
        if kind not in ("DATE", "TIMESTAMP"):
            continue
        first, last = (-_LAST_DAY, _LAST_DAY) if kind == "DATE" else (_FIRST_US - 1, _LAST)
        for group in range(file.num_row_groups):
            chunk = file.row_group(group).column(place)
            known = chunk.statistics
            if known is not None and known.null_count == chunk.num_values:
                continue
            if known is None or not known.has_min_max:
                return True
            if known.min_raw <= first or known.max_raw >= last:
                return True
    return False


def _times(column: pa.Array) -> Iterator[pa.Array]:
    t = pa.types
    if t.is_struct(column.type):
        for inner in column.flatten():
            yield from _times(inner)
    elif t.is_map(column.type):
        yield from _times(column.keys)
        yield from _times(column.items)
    elif t.is_list(column.type) or t.is_large_list(column.type):
        yield from _times(column.flatten())
    elif t.is_timestamp(column.type) or t.is_date32(column.type):
        yield column


def _check(name: str, times: pa.Array) -> None:
    is_date = pa.types.is_date32(times.type)
    counts = times.view(pa.int32() if is_date else pa.int64())
    last = _LAST_DAY if is_date else _LAST
    unfit = pc.is_in(counts, value_set=pa.array([last, -last], counts.type))
    if not is_date and times.type.unit == "us":
        unfit = pc.or_(unfit, pc.fill_null(pc.less(counts, _FIRST_US), False))
    if pc.any(unfit, min_count=0).as_py():
        first = counts.filter(unfit)[0].as_py()
        of = "days" if is_date else times.type.unit
        raise InvalidRequest(
            f"column {name!r}: DuckDB cannot keep {pc.sum(unfit).as_py()} values of {times.type},"
            f" the first is {first} {of} since 1970; leave the column out (--columns)"
        )
