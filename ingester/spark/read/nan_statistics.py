"""Columns whose row groups Spark must not skip by their statistics, which may leave out a NaN.

Law of this file: no value changes. Files of before such statistics were left out (see
:mod:`persist.parquet.leaf_stats`) have them, and Spark holds NaN for greater than every number. A
filter on an expression is not pushed to its reader, so a column that may hold NaN becomes one. The
manifest tells for a column of numbers: it has no bounds where a NaN is. Of what lies inside structs
it knows nothing; what lies in lists and maps is never pushed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ingester.spark.read.merge import quoted
from ingester.spark.read.types import spark_type
from persist.manifest import Add


def not_skipped(field: pa.Field, adds: Sequence[Add]) -> Column:
    """A column of the files, such that filters on it keep the rows that Spark would keep."""
    name = quoted(field.name)
    column = F.col(name)
    if pa.types.is_floating(field.type):
        may_hold = any(_may_hold_nan(add, field.name) for add in adds)
        return _same(column, field.type).alias(field.name) if may_hold else column
    for path, kind in _floats_in(field.type):
        inner = F.col(".".join((name, *path)))
        column = column.withField(".".join(path), _same(inner, kind)).alias(field.name)
    return column


def _same(column: Column, kind: pa.DataType) -> Column:
    return F.nanvl(column, F.lit(float("nan")).cast(spark_type(kind)))


def _may_hold_nan(add: Add, name: str) -> bool:
    stats = add.stats.get(name)
    if stats is None or stats.nulls == add.rows:
        return False  # there is no such column in the file, or no value in it
    return stats.min is None or stats.max is None


def _floats_in(kind: pa.DataType) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Paths inside a struct, quoted, and what lies there."""
    if not pa.types.is_struct(kind):
        return []
    found: list[tuple[tuple[str, ...], pa.DataType]] = []
    for field in kind:
        name = quoted(field.name)
        if pa.types.is_floating(field.type):
            found.append(((name,), field.type))
        found += [((name, *path), inner) for path, inner in _floats_in(field.type)]
    return found
