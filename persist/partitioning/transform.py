"""Transforms of a partition spec: a column becomes codes, and the values they stand for.

Law of this file: a code is an int64, equal codes are equal partition values, and the smallest int64
is null. The results are Iceberg's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.partitioning.paths import FOLDER_VALUE_BYTES, encode_value
from persist.partitioning.spec import PER_DAY, PartitionField, PartitionValue

Codes = npt.NDArray[np.int64]
Decode = Callable[[int], PartitionValue]

_NULL = np.iinfo(np.int64).min


class PartitionValueTooLong(ValueError):
    """An identity partition value whose folder name no file system would take."""


def encode(field: PartitionField, column: pa.Array, folders: bool) -> tuple[Codes, Decode]:
    """The code of each row, and the partition value of a code.

    Args:
        folders: the values have to do as names of folders.

    Raises:
        PartitionValueTooLong: with ``folders``, when a value is decoded that cannot be one.
    """
    match field.transform:
        case "identity":
            return _dictionary_codes(column, lambda value: _identity_value(field, value, folders))
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
    # numpy and not datetime: a timestamp may lie beyond the year 9999.
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
    """The numbers of a column of dates or timestamps without nulls, as they lie there.

    Each call of Arrow lets go of the interpreter, which then has to be waited for again.
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


def _dictionary_codes(
    column: pa.Array, decode: Callable[[Any], PartitionValue]
) -> tuple[Codes, Decode]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    values = encoded.dictionary
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return codes, lambda code: decode(_python_value(values, code))


def _python_value(values: pa.Array, index: int) -> Any:
    if not values[index].is_valid:
        return None
    if pa.types.is_date32(values.type):
        return day_text(int(values[index].value))
    if pa.types.is_timestamp(values.type):
        # As text through Arrow: Python's datetime has no nanoseconds.
        naive = values.slice(index, 1).view(pa.int64()).cast(pa.timestamp(values.type.unit))
        return naive.cast(pa.string())[0].as_py()
    return values[index].as_py()


def _identity_value(field: PartitionField, value: Any, folders: bool) -> PartitionValue:
    if value is None or isinstance(value, bool | int):
        return value
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    if folders and len(encode_value(text)) > FOLDER_VALUE_BYTES:
        raise PartitionValueTooLong(
            f"partition field {field}: the value {text[:40]!r}… has {len(encode_value(text))} bytes"
            f" as a folder name, at most {FOLDER_VALUE_BYTES} are possible"
        )
    return text


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
