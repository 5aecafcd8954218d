"""Orders a record batch by partition, or splits it, without a loop over rows.

Each transform turns its column into int64 codes: equal codes are equal partition values, and the
smallest int64 is null. The rows of each partition keep their order, every row is in exactly one,
and the batch itself is returned, without a copy, if all rows share a partition
(tests/persist/partitioning/test_split.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.partitioning.spec import (
    FOLDER_VALUE_BYTES,
    PER_DAY,
    PartitionField,
    PartitionSpec,
    PartitionValue,
    PartitionValues,
    encode_value,
)

Codes = npt.NDArray[np.int64]
Decode = Callable[[int], PartitionValue]

_NULL = np.iinfo(np.int64).min
_LONGEST_CHARACTER = 12
"""Bytes of a character in a folder name at most: four bytes of UTF-8, percent-encoded."""
_SHORT_CODES = 1 << 15
"""A range of codes for which numpy's stable sort is a radix sort."""


class PartitionValueTooLong(ValueError):
    """An identity partition value whose folder name is too long for any file system."""


def encode(field: PartitionField, column: pa.Array, folders: bool) -> tuple[Codes, Decode]:
    """The code of each row, and the partition value of a code.

    Args:
        folders: the values must be usable as folder names.

    Raises:
        PartitionValueTooLong: with ``folders``, if a value is too long.
    """
    match field.transform:
        case "identity":
            encoded = pc.dictionary_encode(column, null_encoding="encode")
            codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
            return codes, _identity_values(field, encoded.dictionary, folders).__getitem__
        case "bucket":
            assert field.buckets is not None
            buckets = field.buckets
            return _bucket_codes(column, buckets)
        case "day":
            return _day_codes(column), _or_null(day_text)
        case "hour":
            return _floor(column, 24), _or_null(hour_text)
        case "month":
            return _months(column), _or_null(lambda m: f"{1970 + m // 12:04d}-{m % 12 + 1:02d}")
        case _:
            return _years(column), _or_null(lambda year: year)


def _or_null(decode: Callable[[int], PartitionValue]) -> Decode:
    return lambda code: None if code == _NULL else decode(code)


@lru_cache(maxsize=1024)
def day_text(days: int) -> str:
    """The text ``2026-11-21`` of days since 1970."""
    # numpy instead of datetime, because a timestamp may lie beyond the year 9999.
    return str(np.datetime64(days, "D"))


def hour_text(hours: int) -> str:
    """The text ``2026-11-21-15`` of hours since 1970."""
    return f"{day_text(hours // 24)}-{hours % 24:02d}"


def _int64(column: pa.Array) -> Codes:
    """Values as int64, nulls as the smallest one."""
    if pa.types.is_timestamp(column.type):
        numbers = column.view(pa.int64())
    else:
        numbers = column.cast(pa.int32()).cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(int(_NULL))
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.int64)


def plain_values(column: pa.Array) -> npt.NDArray[np.signedinteger[Any]]:
    """The numbers of a column of dates or timestamps without nulls, without a copy.

    A call of Arrow would release the interpreter and wait for it again.
    """
    kind = np.int64 if pa.types.is_timestamp(column.type) else np.int32
    width = np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * width)


def _floor(column: pa.Array, parts_of_day: int) -> Codes:
    numbers = _int64(column)
    floored = numbers // (PER_DAY[column.type.unit] // parts_of_day)
    return np.where(numbers == _NULL, _NULL, floored) if column.null_count else floored


def _day_codes(column: pa.Array) -> Codes:
    return _int64(column) if pa.types.is_date32(column.type) else _floor(column, 1)


def _months(column: pa.Array) -> Codes:
    days = _day_codes(column)
    known = days != _NULL
    months = np.where(known, days, 0).astype("datetime64[D]").astype("datetime64[M]")
    return np.where(known, months.astype(np.int64), _NULL)


def _years(column: pa.Array) -> Codes:
    months = _months(column)
    return np.where(months == _NULL, _NULL, months // 12 + 1970)


def _identity_values(
    field: PartitionField, values: pa.Array, folders: bool
) -> list[PartitionValue]:
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return list(values.to_pylist())
    if pa.types.is_date32(kind):
        days = values.view(pa.int32()).to_pylist()
        return [None if day is None else day_text(day) for day in days]
    if pa.types.is_timestamp(kind):
        # As text through Arrow, because Python's datetime has no nanoseconds.
        values = values.view(pa.int64()).cast(pa.timestamp(kind.unit)).cast(pa.string())
    texts = [None if value is None else str(value) for value in values.to_pylist()]
    if folders:
        for text in texts:
            if text is not None and len(text) * _LONGEST_CHARACTER > FOLDER_VALUE_BYTES:
                _check_length(field, text)
    return list(texts)


def _check_length(field: PartitionField, text: str) -> None:
    if (nbytes := len(encode_value(text))) > FOLDER_VALUE_BYTES:
        raise PartitionValueTooLong(
            f"partition field {field}: the value {text[:40]!r}… has {nbytes} bytes as a folder"
            f" name, at most {FOLDER_VALUE_BYTES} are possible"
        )


def _bucket_codes(column: pa.Array, buckets: int) -> tuple[Codes, Decode]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    values = encoded.dictionary
    if pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.view(pa.int32()).cast(pa.int64())
    table = np.array([_bucket(value.as_py(), buckets) for value in values], dtype=np.int64)
    indices = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return table[indices], _or_null(lambda code: code)


def _bucket(value: Any, buckets: int) -> int:
    """Iceberg's bucket: murmur3_x86_32 of the value's bytes, sign dropped, modulo ``buckets``."""
    if value is None:
        return int(_NULL)
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, bytes):
        data = value
    elif isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        data = unscaled.to_bytes(
            (unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True
        )
    else:
        data = (value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    return (mmh3.hash(data, 0, signed=False) & 0x7FFF_FFFF) % buckets


def any_number(parts: int) -> None:
    """Accept any number of partitions."""


class PartitionedRows(NamedTuple):
    """Rows of a batch, those of each partition behind each other."""

    rows: pa.RecordBatch
    values: list[PartitionValues]
    """The values of each partition."""
    starts: list[int]
    """The first row of each partition, and the number of rows."""
    order: Codes | None = None
    """The row's number in the batch, for each row; None if no row moved."""

    @classmethod
    def joined(
        cls, parts: Sequence[tuple[PartitionValues, pa.RecordBatch]], schema: pa.Schema
    ) -> PartitionedRows:
        """A copy of the rows of these partitions, one behind the other."""
        batches = [rows for _, rows in parts]
        starts = [0, *accumulate(rows.num_rows for rows in batches)]
        whole = pa.concat_batches([*batches, _none(schema)])
        return cls(whole, [values for values, _ in parts], starts)

    def parts(self) -> list[tuple[PartitionValues, pa.RecordBatch]]:
        """Each partition's rows, as views."""
        if len(self.values) == 1:
            return [(self.values[0], self.rows)]
        pairs = zip(self.values, pairwise(self.starts), strict=True)
        return [(values, self.rows.slice(a, b - a)) for values, (a, b) in pairs]


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)


def order_by_partition(
    batch: pa.RecordBatch,
    spec: PartitionSpec,
    *,
    folders: bool = True,
    check: Callable[[int], None] = any_number,
) -> PartitionedRows:
    """Order a batch's rows by partition, those of a partition as they are in the batch.

    Args:
        folders: the values must be usable as folder names.
        check: called with the number of partitions, if there are several, before rows are moved;
            its exception ends the work.

    Returns:
        Each partition has at least one row; an empty batch has none. The batch itself is used if no
        row moves.

    Raises:
        PartitionValueTooLong: an identity value is longer than a folder name may be.
    """
    count = batch.num_rows
    if count == 0:
        return PartitionedRows(batch, [], [0])
    values = () if not spec.fields else _only_partition(batch, spec)
    if values is not None:
        return PartitionedRows(batch, [values], [0, count])
    encoded = [encode(field, batch.column(field.column), folders) for field in spec.fields]
    order, firsts = _ordered(_combine([codes for codes, _ in encoded]), check)
    rows = batch if order is None else batch.take(pa.array(order))
    found = firsts if order is None else order[firsts]
    decoded = [_decoded(codes[found].tolist(), decode) for codes, decode in encoded]
    values_of = list(zip(*decoded, strict=True))
    return PartitionedRows(rows, values_of, [*firsts.tolist(), count], order)


def _decoded(codes: list[int], decode: Decode) -> list[PartitionValue]:
    values = {code: decode(code) for code in set(codes)}
    return [values[code] for code in codes]


def split_batch(
    batch: pa.RecordBatch, spec: PartitionSpec, *, folders: bool = True
) -> list[tuple[PartitionValues, pa.RecordBatch]]:
    """Split a batch by partition; see :func:`order_by_partition`.

    Returns:
        ``(values, rows)`` per partition. The parts are views of one batch: copy those to be kept
        separately.
    """
    return order_by_partition(batch, spec, folders=folders).parts()


def with_columns(batch: pa.RecordBatch, names: Iterable[str], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with these columns of a schema, null if it lacks them."""
    for name in names:
        if batch.schema.get_field_index(name) < 0:
            field = schema.field(name)
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch


def partition_values(
    batch: pa.RecordBatch, spec: PartitionSpec
) -> list[tuple[list[PartitionValue], npt.NDArray[np.int64]]]:
    """The values that each field of a spec computes for the rows.

    Returns:
        Per field ``(distinct values, the index of each row's value)``. Values may be longer than a
        folder's name.
    """
    found = []
    for field in spec.fields:
        codes, decode = encode(field, batch.column(field.column), False)
        distinct, places = np.unique(codes, return_inverse=True)
        found.append(([decode(int(code)) for code in distinct], places.astype(np.int64)))
    return found


def _only_partition(batch: pa.RecordBatch, spec: PartitionSpec) -> PartitionValues | None:
    """The partition that all rows share, if the extremes of each column tell."""

    def ends(name: str) -> tuple[pa.DataType, int, int] | None:
        column = batch.column(name)
        if column.null_count:
            return None
        numbers = plain_values(column)
        if len(numbers) == 1:
            return column.type, int(numbers[0]), int(numbers[0])
        # The ufuncs, because the methods take longer than the work on a small batch.
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
    """One code per row for the tuple of codes: equal if and only if all are equal."""
    combined = columns[0]
    for codes in columns[1:]:
        _, left = np.unique(combined, return_inverse=True)
        values, right = np.unique(codes, return_inverse=True)
        combined = left.astype(np.int64) * len(values) + right
    return combined


def _ordered(
    codes: Codes, check: Callable[[int], None]
) -> tuple[Codes | None, npt.NDArray[np.intp]]:
    """The order of rows by code, None if they have it, and the first row of each code in it."""
    # Compared, not subtracted, because the code of a null is the smallest int64.
    order = None
    if not bool((codes[1:] >= codes[:-1]).all()):
        least = int(codes.min())
        if int(codes.max()) - least < _SHORT_CODES:
            codes = (codes - least).astype(np.int16)
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if len(changes):
        check(len(changes) + 1)
    return order, np.concatenate(([0], changes))
