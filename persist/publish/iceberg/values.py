"""Values of partitions and bounds: from the manifest's JSON form to Iceberg's. Pure.

A value is first made *plain*: dates, timestamps and decimals become integers (days, microseconds,
the unscaled number), all other values are themselves. From there it is written as bytes
(https://iceberg.apache.org/spec/#appendix-d-single-value-serialization) or into a partition.
"""

from __future__ import annotations

import base64
import re
import struct
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from persist.partitioning import PartitionField, PartitionValue

Plain = bool | int | float | str | bytes
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_OUT_OF_RANGE = re.compile(r"<value out of range: (-?\d+)>")
"""Arrow's text of a timestamp that has no date."""


def bound(kind: pa.DataType, value: Any, *, upper: bool) -> bytes | None:
    """A bound of ``Add.stats`` as bytes; None if it is unknown."""
    if value is None or pa.types.is_nested(kind):
        return None
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    if pa.types.is_floating(kind):
        # Iceberg orders -0.0 before 0.0, Arrow treats them as equal.
        zero = 0.0 if upper else -0.0
        return to_bytes(kind, zero if value == 0 else float(value))
    if pa.types.is_decimal128(kind):
        return to_bytes(kind, unscaled(value, kind.scale))
    return to_bytes(kind, value)


def to_bytes(kind: pa.DataType, value: Plain) -> bytes:
    """A plain value of a type as bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if pa.types.is_boolean(kind):
        return b"\1" if value else b"\0"
    if isinstance(value, float):
        return struct.pack("<f" if pa.types.is_float32(kind) else "<d", value)
    if pa.types.is_decimal128(kind):
        return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        return value.to_bytes(8, "little", signed=True)
    return value.to_bytes(4, "little", signed=True)


def from_bytes(kind: pa.DataType, data: bytes) -> Plain:
    """The plain value of a partition that :func:`to_bytes` wrote."""
    if pa.types.is_string(kind):
        return data.decode()
    if pa.types.is_boolean(kind):
        return data != b"\0"
    order: Literal["big", "little"] = "big" if pa.types.is_decimal128(kind) else "little"
    return int.from_bytes(data, order, signed=True)


def unscaled(text: str, scale: int) -> int:
    """The digits of a decimal as an integer."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale)
    return int(-number if sign else number)


@lru_cache(maxsize=4096)
def plain_partition(
    field: PartitionField, kind: pa.DataType, value: PartitionValue
) -> Plain | None:
    """The plain value of a partition.

    Args:
        kind: the type of the source column.
        value: as in the manifest: ``2026-11-21`` for a day, a number for a year or bucket, …
    """
    if value is None:
        return None
    match field.transform:
        case "identity":
            return _plain_identity(kind, value)
        case "year":
            return int(value) - 1970
        case "month":
            return _units(str(value), "M")
        case "day":
            return _units(str(value), "D")
        case "hour":
            day, hour = str(value).rsplit("-", 1)
            # Hours beyond the year 246,000 are no int. The nearest one keeps the order.
            return max(_LEAST, min(_units(day, "D") * 24 + int(hour), _MOST))
        case _:
            return int(value)


def _plain_identity(kind: pa.DataType, value: str | int | bool) -> Plain:
    if isinstance(value, int):
        return value
    if pa.types.is_date32(kind):
        return _units(value, "D")
    if pa.types.is_timestamp(kind):
        beyond = _OUT_OF_RANGE.fullmatch(value)
        return int(beyond[1]) if beyond else _units(value, "us")
    if pa.types.is_decimal128(kind):
        return unscaled(value, kind.scale)
    return value


def _units(text: str, unit: str) -> int:
    """A date or time in this unit since 1970; numpy has more years than Python."""
    return int(np.array([text], dtype=f"datetime64[{unit}]").astype(np.int64)[0])


def in_partition(kind: pa.DataType, value: Plain | None) -> Plain | None:
    """A plain value as Avro stores it in a file's partition: decimals have a fixed length."""
    if value is None or not pa.types.is_decimal128(kind):
        return value
    return int(value).to_bytes(decimal_bytes(kind.precision), "big", signed=True)


def decimal_bytes(precision: int) -> int:
    """The number of bytes that a decimal of this precision takes."""
    return int(10**precision - 1).bit_length() // 8 + 1
