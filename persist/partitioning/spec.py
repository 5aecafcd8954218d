"""A partition spec: transforms over columns, as ``day(time)`` or ``bucket(9, host)``. Pure, no
rows.

A spec is written as text in the manifest and parsed back to the same value. The transforms are
Iceberg's (identity, year, month, day, hour, bucket), with its results: years as numbers, months
``2026-11``, days ``2026-11-21``, hours ``2026-11-21-15``, all in UTC, buckets by murmur3_x86_32
(https://iceberg.apache.org/spec/#partition-transforms).

Folders are Hive-encoded, for Spark, DuckDB and pyarrow: everything but ``[A-Za-z0-9_.-]`` is
percent-encoded, null is ``__HIVE_DEFAULT_PARTITION__``. A field's folder name (``time_day``) cannot
be the name of a data column. Folder names only place files; the manifest's values and the column in
the file are the truth. Spark writes an empty string as null, so it shares the null folder.

A partition's values also imply bounds of the columns, never narrower than the partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from persist.manifest import ColumnStats

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
    """A partition spec that cannot be parsed, or does not fit its table's schema."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One transform of one column; ``buckets`` is set only for ``bucket``."""

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
        """Raise :class:`InvalidPartitionSpec` if a column of this type cannot be transformed."""
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
    """The fields, in folder order; none for an unpartitioned table."""

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
        """The texts that :meth:`parse` reads."""
        return tuple(str(field) for field in self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The folder names, which columns of the table cannot have."""
        return tuple(field.name for field in self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the fields are computed from."""
        return tuple(field.column for field in self.fields)

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise :class:`InvalidPartitionSpec` if a column is missing or of an unsuitable type."""
        for field in self.fields:
            index = schema.get_field_index(field.column)
            if index < 0:
                raise InvalidPartitionSpec(f"partition field {field}: no column {field.column!r}")
            field.check_type(schema.field(index).type)


UNPARTITIONED = PartitionSpec()


def default_spec(schema: pa.Schema) -> PartitionSpec:
    """``day(time)`` if there is a timestamp column named ``time``, else unpartitioned."""
    index = schema.get_field_index("time")
    if index >= 0 and pa.types.is_timestamp(schema.field(index).type):
        return PartitionSpec((PartitionField("day", "time"),))
    return UNPARTITIONED


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
FOLDER_VALUE_BYTES = 180
"""The longest encoded value: local file systems accept names of 255 bytes, including the
column's.
"""

FOLDER_NAME_BYTES = 74
"""The longest encoded name of a partition column: what remains beside the value and the ``=``."""


def encode_value(value: PartitionValue) -> str:
    """A value after ``name=``."""
    if value is None or value == "":
        return NULL_FOLDER
    if isinstance(value, bool):
        return "true" if value else "false"
    text = quote(str(value), safe="").replace("~", "%7E")
    # Spark compares the raw text with its null marker before decoding it.
    return "%5F" + text[1:] if text == NULL_FOLDER else text


def encode_name(name: str) -> str:
    """A column's name before ``=``."""
    return quote(name, safe="").replace("~", "%7E")


def check_folder_names(spec: PartitionSpec) -> None:
    """Raise :class:`InvalidPartitionSpec` for a name that is too long for a folder."""
    for name in spec.names:
        if len(encode_name(name)) > FOLDER_NAME_BYTES:
            raise InvalidPartitionSpec(
                f"partition_by: {name[:40]!r}… has {len(encode_name(name))} bytes as a folder name,"
                f" at most {FOLDER_NAME_BYTES} are possible"
            )


def folder_of(spec: PartitionSpec, values: PartitionValues) -> str:
    """A folder as ``time_day=2026-11-21/host_bucket=3``; empty for an unpartitioned table."""
    return "/".join(
        f"{encode_name(field.name)}={encode_value(value)}"
        for field, value in zip(spec.fields, values, strict=True)
    )


def partition_bounds(
    spec: PartitionSpec, values: PartitionValues, schema: pa.Schema
) -> dict[str, ColumnStats]:
    """Bounds of the columns that the partition is computed from, if they are known."""
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
