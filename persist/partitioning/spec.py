"""A partition spec: a tuple of transforms over columns, as ``day(time)`` or ``bucket(9, host)``.

Law of this file: pure values, no rows. A spec is written as text in the manifest and parsed back to
the same value; its field names are the folder names (``time_day``), which no data column may have.

The transforms are Iceberg's (identity, year, month, day, hour, bucket), with its results: years as
numbers, months ``2026-11``, days ``2026-11-21``, hours ``2026-11-21-15``, all in UTC, buckets by
murmur3_x86_32 (https://iceberg.apache.org/spec/#partition-transforms).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

PartitionValue = str | int | bool | None
PartitionValues = tuple[PartitionValue, ...]

PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""Units of a timestamp in a day."""

_SUFFIX = {
    "identity": "key",
    "year": "year",
    "month": "month",
    "day": "day",
    "hour": "hour",
    "bucket": "bucket",
}
_CALL = re.compile(r"^\s*(identity|year|month|day|hour)\s*\(\s*(.+?)\s*\)\s*$", re.DOTALL)
_BUCKET = re.compile(r"^\s*bucket\s*\(\s*(\d{1,6})\s*,\s*(.+?)\s*\)\s*$", re.DOTALL)
_MAX_BUCKETS = 65_536


class InvalidPartitionSpec(ValueError):
    """A partition spec that cannot be parsed, or that does not fit its table's schema."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One transform of one column; ``buckets`` is set for ``bucket`` alone."""

    transform: str
    column: str
    buckets: int | None = None

    @property
    def name(self) -> str:
        """The folder's column name, ``time_day`` for ``day(time)``."""
        return f"{self.column}_{_SUFFIX[self.transform]}"

    def __str__(self) -> str:
        if self.transform == "bucket":
            return f"bucket({self.buckets}, {self.column})"
        return f"{self.transform}({self.column})"

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """Read ``day(time)``, ``bucket(16, host)``, … or raise :class:`InvalidPartitionSpec`."""
        if match := _BUCKET.match(text):
            buckets = int(match[1])
            if not 1 <= buckets <= _MAX_BUCKETS:
                raise InvalidPartitionSpec(
                    f"partition field {text!r}: buckets must be 1 to {_MAX_BUCKETS}"
                )
            return cls("bucket", match[2], buckets)
        if match := _CALL.match(text):
            return cls(match[1], match[2])
        raise InvalidPartitionSpec(
            f"partition field {text!r} is not one of identity(col), year|month|day|hour(col),"
            " bucket(n, col)"
        )

    def check_type(self, kind: pa.DataType) -> None:
        """Raise :class:`InvalidPartitionSpec` where a column of this type cannot be transformed."""
        if self.transform in ("year", "month", "day", "hour"):
            fits = pa.types.is_timestamp(kind) or (
                pa.types.is_date32(kind) and self.transform != "hour"
            )
        else:
            fits = (
                pa.types.is_integer(kind)
                or pa.types.is_string(kind)
                or pa.types.is_date32(kind)
                or pa.types.is_timestamp(kind)
                or pa.types.is_decimal128(kind)
                or (pa.types.is_boolean(kind) and self.transform == "identity")
                or (pa.types.is_binary(kind) and self.transform == "bucket")
            )
        if not fits:
            raise InvalidPartitionSpec(
                f"partition field {self}: column {self.column!r} of type {kind} has no"
                f" {self.transform} partitions"
            )


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The fields, in folder order; none at all is an unpartitioned table."""

    fields: tuple[PartitionField, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> PartitionSpec:
        """Read ``["day(time)", "bucket(16, host)"]`` or raise :class:`InvalidPartitionSpec`."""
        fields = tuple(PartitionField.parse(text) for text in texts)
        names = [field.name.casefold() for field in fields]
        if len(set(names)) != len(names):
            raise InvalidPartitionSpec(f"partition fields {[str(f) for f in fields]} repeat a name")
        return cls(fields)

    def texts(self) -> tuple[str, ...]:
        """The texts that :meth:`parse` reads back."""
        return tuple(str(field) for field in self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The folder names, which columns of the table may not have."""
        return tuple(field.name for field in self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that the fields are made from."""
        return tuple(field.column for field in self.fields)

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise :class:`InvalidPartitionSpec` where a column is missing or of an unfit type."""
        for field in self.fields:
            index = schema.get_field_index(field.column)
            if index < 0:
                raise InvalidPartitionSpec(f"partition field {field}: no column {field.column!r}")
            field.check_type(schema.field(index).type)


UNPARTITIONED = PartitionSpec()


def default_spec(schema: pa.Schema) -> PartitionSpec:
    """``day(time)`` where there is a timestamp column named ``time``, else unpartitioned."""
    index = schema.get_field_index("time")
    if index >= 0 and pa.types.is_timestamp(schema.field(index).type):
        return PartitionSpec((PartitionField("day", "time"),))
    return UNPARTITIONED
