"""One record batch into one batch per partition, without a loop over rows.

Law of this file: the rows of each part keep their order, every row is in exactly one part, and the
batch itself comes back (no copy) when all rows share a partition. Each field turns its column into
int64 codes; equal codes are equal partition values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.partitioning.spec import PER_DAY, PartitionSpec, PartitionValue, PartitionValues
from persist.partitioning.transform import Codes, day_text, encode, hour_text, plain_values


def _any_number(parts: int) -> None:
    """Let a batch have so many partitions."""


def split_batch(
    batch: pa.RecordBatch,
    spec: PartitionSpec,
    *,
    folders: bool = True,
    check: Callable[[int], None] = _any_number,
) -> list[tuple[PartitionValues, pa.RecordBatch]]:
    """Split a batch by partition.

    Args:
        folders: the values have to do as names of folders.
        check: is told how many partitions there are, where there are several, before any of their
            parts is made; what it raises ends the split.

    Returns:
        ``(values, rows)`` per partition, each with at least one row and in the order of the batch;
        empty for an empty batch. The parts are views of one batch: whoever keeps them apart copies.

    Raises:
        PartitionValueTooLong: an identity value longer than a folder name may be.
    """
    if batch.num_rows == 0:
        return []
    if not spec.fields:
        return [((), batch)]
    values = _only_partition(batch, spec)
    if values is not None:
        return [(values, batch)]
    encoded = [encode(field, batch.column(field.column), folders) for field in spec.fields]
    if all(codes[0] == codes.min() and codes[0] == codes.max() for codes, _ in encoded):
        return [(tuple(decode(int(codes[0])) for codes, decode in encoded), batch)]
    return [
        (tuple(decode(int(codes[first])) for codes, decode in encoded), part)
        for first, part in _parts(batch, _combine([codes for codes, _ in encoded]), check)
    ]


def with_columns(batch: pa.RecordBatch, names: Iterable[str], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with these columns of a schema, null where it lacks them."""
    for name in names:
        if batch.schema.get_field_index(name) < 0:
            field = schema.field(name)
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch


def partition_values(
    batch: pa.RecordBatch, spec: PartitionSpec
) -> list[tuple[list[PartitionValue], npt.NDArray[np.int64]]]:
    """The values that each field of a spec makes of the rows.

    Returns:
        Per field ``(distinct values, for each row the place of its own)``. Values may be longer
        than a folder's name.
    """
    found = []
    for field in spec.fields:
        codes, decode = encode(field, batch.column(field.column), False)
        distinct, places = np.unique(codes, return_inverse=True)
        found.append(([decode(int(code)) for code in distinct], places.astype(np.int64)))
    return found


def shared_partition(rows: pa.Table, spec: PartitionSpec) -> PartitionValues | None:
    """The partition that all rows of several batches share, where that is quickly told.

    None says nothing: split the batches one by one. Columns may be missing.
    """
    if rows.num_rows == 0 or not set(spec.columns) <= set(rows.column_names):
        return None

    def ends(column: str) -> tuple[pa.DataType, int, int] | None:
        values = rows.column(column)
        if values.null_count or not (
            pa.types.is_timestamp(values.type) or pa.types.is_date32(values.type)
        ):
            return None
        found = pc.min_max(values)
        return values.type, found["min"].value, found["max"].value

    return _between(ends, spec)


def _only_partition(batch: pa.RecordBatch, spec: PartitionSpec) -> PartitionValues | None:
    """The partition that all rows share, where two values of each column are enough to tell."""

    def ends(name: str) -> tuple[pa.DataType, int, int] | None:
        column = batch.column(name)
        if column.null_count:
            return None
        numbers = plain_values(column)
        if len(numbers) == 1:
            return column.type, int(numbers[0]), int(numbers[0])
        # The functions themselves: the methods take longer than the work in a small batch.
        return column.type, int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))

    return _between(ends, spec)


def _between(
    ends: Callable[[str], tuple[pa.DataType, int, int] | None], spec: PartitionSpec
) -> PartitionValues | None:
    """The partition of all rows between each column's lowest and highest value, if it is one."""
    values = []
    for field in spec.fields:
        if field.transform not in ("day", "hour"):
            return None
        found = ends(field.column)
        if found is None:
            return None
        kind, low, high = found
        unit = 1
        if not pa.types.is_date32(kind):
            unit = PER_DAY[kind.unit] // (24 if field.transform == "hour" else 1)
        if low // unit != high // unit:
            return None
        values.append((hour_text if field.transform == "hour" else day_text)(low // unit))
    return tuple(values)


def _combine(columns: list[Codes]) -> Codes:
    """One code per row for the tuple of codes: equal exactly where all are equal."""
    combined = columns[0]
    for codes in columns[1:]:
        _, left = np.unique(combined, return_inverse=True)
        values, right = np.unique(codes, return_inverse=True)
        combined = left.astype(np.int64) * len(values) + right
    return combined


def _parts(
    batch: pa.RecordBatch, codes: Codes, check: Callable[[int], None]
) -> list[tuple[int, pa.RecordBatch]]:
    """``(a row of the part, the part)``; the parts are views of one batch, reordered if need be."""
    # Compared, not subtracted: the code of a null is the smallest there is.
    in_order = bool((codes[1:] >= codes[:-1]).all())
    order = np.arange(len(codes)) if in_order else np.argsort(codes, kind="stable")
    codes = codes if in_order else codes[order]
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    check(len(changes) + 1)
    rows = batch if in_order else batch.take(pa.array(order))
    starts = np.concatenate(([0], changes, [len(codes)])).tolist()
    return [(int(order[a]), rows.slice(a, b - a)) for a, b in pairwise(starts)]
