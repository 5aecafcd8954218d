"""The statistics of a data file as Delta has them, from those in the manifest. Pure.

A reader skips a file whose bounds exclude every row it looks for, so a bound may be wider than the
values, and never tighter. Delta's timestamps in statistics have milliseconds: the lower bound is
rounded down and the upper one up. Columns of structs, lists and maps have no statistics: a number
of nulls where a reader expects those of the fields makes the whole file of metadata unreadable.
Binary columns have no bounds in Delta.

Every bound that can be stated is stated: deltalake's ``to_pyarrow_dataset`` takes a missing one as
excluding every row if another column of the file has bounds (test_statistics)::

    in the manifest                          in Delta
    no bound of a text, as it is too long    the lowest or the highest text
    only one bound of a float column         the other one is infinite
    no bounds of a float column              none: it may contain NaN, which Spark sorts above all
    a time outside the years 1 to 9999       no bound
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from persist.manifest import Add, ColumnStats

_EPOCH = dt.datetime(1970, 1, 1)
_LAST = (dt.datetime.max - _EPOCH) // dt.timedelta(microseconds=1)
"""Many tables have this time as the end of what has no end yet; rounded up it is no time."""
_DAY_ZERO = dt.date(1970, 1, 1).toordinal()
_UNKNOWN = ColumnStats()
_encode = msgspec.json.Encoder().encode

_HIGHEST_TEXT = "\U0010ffff" * 16
"""Above all texts but those that begin with these 64 bytes, which are no characters."""

Bound = Callable[[Any, Any, bool], Any]
"""Converts a bound of the manifest to JSON, given the opposite one, and whether it is the upper."""


class StatsWriter:
    """Writes the statistics of files of a table with this schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [(f.name, _bound_of(f.type)) for f in schema if not f.type.num_fields]

    def text(self, add: Add) -> str:
        """The ``stats`` of a file."""
        lows, highs, nulls = {}, {}, {}
        # A column without statistics came after the file, which has those of all its columns.
        absent = ColumnStats(nulls=add.rows) if add.stats else _UNKNOWN
        for name, bound in self._columns:
            found = add.stats.get(name, absent)
            if found.nulls is not None:
                nulls[name] = found.nulls
            if bound is None or found.nulls is None or found.nulls == add.rows:
                continue
            if (low := bound(found.min, found.max, False)) is not None:
                lows[name] = low
            if (high := bound(found.max, found.min, True)) is not None:
                highs[name] = high
        stats = {"numRecords": add.rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
        return _encode(stats).decode()


def _bound_of(kind: pa.DataType) -> Bound | None:
    """How bounds of columns of this type are written; None if they have none."""
    t = pa.types
    if t.is_timestamp(kind):
        return _instant if kind.tz else _wall_clock
    if t.is_date32(kind):
        return _date
    if t.is_decimal128(kind):
        return _decimal
    if t.is_floating(kind):
        return _number
    if t.is_string(kind):
        return _text
    return None if t.is_binary(kind) else _as_it_is


def _as_it_is(value: Any, other: Any, upper: bool) -> Any:
    return value


def _number(value: float | None, other: float | None, upper: bool) -> float | str | None:
    if value is None:
        return None if other is None else "Infinity" if upper else "-Infinity"
    # -0.0 equals 0.0, but readers that order them would skip a file that has the other one only.
    return value if value else (0.0 if upper else -0.0)


def _text(value: str | None, other: str | None, upper: bool) -> str:
    if value is not None:
        return value
    return _HIGHEST_TEXT if upper else ""


def _instant(value: int | None, other: int | None, upper: bool) -> str | None:
    text = _wall_clock(value, other, upper)
    return None if text is None else f"{text}Z"


def _wall_clock(value: int | None, other: int | None, upper: bool) -> str | None:
    if value is None:
        return None
    rounded = -(-value // 1000) * 1000 if upper else value // 1000 * 1000
    if value <= _LAST < rounded:
        rounded = _LAST
    try:
        moment = _EPOCH + dt.timedelta(microseconds=rounded)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds" if rounded == _LAST else "milliseconds")


def _date(value: int | None, other: int | None, upper: bool) -> str | None:
    if value is None:
        return None
    try:
        return dt.date.fromordinal(_DAY_ZERO + value).isoformat()
    except (OverflowError, ValueError):
        return None


def _decimal(value: str | None, other: str | None, upper: bool) -> msgspec.Raw | None:
    if value is None:
        return None
    # All digits and no exponent: some readers convert numbers with one through doubles.
    return msgspec.Raw(format(Decimal(value), "f").encode())
