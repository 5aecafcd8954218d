"""Column bounds for pruning that a partition's values imply for the rows in it.

Law of this file: pure; bounds are never narrower than the partition. Times are integers in the
column's unit, as in the manifest's statistics.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from persist.manifest import ColumnStats
from persist.partitioning.spec import (
    PER_DAY,
    PartitionField,
    PartitionSpec,
    PartitionValue,
    PartitionValues,
)


def partition_bounds(
    spec: PartitionSpec, values: PartitionValues, schema: pa.Schema
) -> dict[str, ColumnStats]:
    """Bounds of the columns that the partition is made from, where it says something of them."""
    found = {}
    for field, value in zip(spec.fields, values, strict=True):
        index = schema.get_field_index(field.column)
        bounds = _bounds(field, value, schema.field(index).type) if index >= 0 else None
        if bounds is not None:
            found[field.column] = bounds
    return found


def _bounds(field: PartitionField, value: PartitionValue, kind: pa.DataType) -> ColumnStats | None:
    if value is None:
        return None
    if field.transform == "identity":
        plain = isinstance(value, int) or pa.types.is_string(kind)
        return ColumnStats(min=value, max=value, nulls=0) if plain else None
    if field.transform == "bucket":
        return None
    first, last = _span(field.transform, str(value))
    if pa.types.is_date32(kind):
        return ColumnStats(min=first, max=last - 1, nulls=0)
    per_day = PER_DAY[kind.unit]
    if field.transform == "hour":
        hour = int(str(value).rsplit("-", 1)[1])
        start = first * per_day + hour * (per_day // 24)
        return ColumnStats(min=start, max=start + per_day // 24 - 1, nulls=0)
    return ColumnStats(min=first * per_day, max=last * per_day - 1, nulls=0)


def _span(transform: str, value: str) -> tuple[int, int]:
    """First day of the partition and the day after its last, as days since 1970."""
    if transform == "hour":
        day = np.datetime64(value.rsplit("-", 1)[0], "D")
        return int(day.astype(int)), int(day.astype(int)) + 1
    unit = {"day": "D", "month": "M", "year": "Y"}[transform]
    start = np.array([value], dtype=f"datetime64[{unit}]")
    first, last = np.concatenate((start, start + 1)).astype("datetime64[D]").astype(np.int64)
    return int(first), int(last)
