"""The statistics of a data file as Delta has them, from those in the manifest. Pure.

A reader skips a file whose bounds exclude every row it looks for, so a bound may be wider than the
values, and never tighter. Delta's timestamps in statistics have milliseconds: the lower bound is
rounded down and the upper one up. Bounds that JSON or Delta cannot hold are left out, which readers
take as unknown: infinities, years outside 1 to 9999, and those of bool and binary columns, which
Delta does not define. Columns of structs, lists and maps have no statistics: a number of nulls
where a reader expects those of the fields makes the whole file of metadata unreadable.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from persist.manifest import Add

_EPOCH = dt.datetime(1970, 1, 1)
_DAY_ZERO = dt.date(1970, 1, 1).toordinal()
_encode = msgspec.json.Encoder().encode

Bound = Callable[[Any, bool], Any]
"""Converts a bound of the manifest to JSON; the second argument is true for the upper one."""


class StatsWriter:
    """Writes the statistics of files of a table with this schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [(f.name, _bound_of(f.type)) for f in schema if not f.type.num_fields]

    def text(self, add: Add) -> str:
        """The ``stats`` of a file."""
        lows, highs, nulls = {}, {}, {}
        for name, bound in self._columns:
            found = add.stats.get(name)
            if found is None:
                continue
            if found.nulls is not None:
                nulls[name] = found.nulls
            if bound is None:
                continue
            if found.min is not None and (low := bound(found.min, False)) is not None:
                lows[name] = low
            if found.max is not None and (high := bound(found.max, True)) is not None:
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
    if t.is_boolean(kind) or t.is_binary(kind):
        return None
    return _float if t.is_floating(kind) else _as_it_is


def _as_it_is(value: Any, upper: bool) -> Any:
    return value


def _float(value: float, upper: bool) -> float:
    # -0.0 equals 0.0, but readers that order them would skip a file that has the other one only.
    return value if value else (0.0 if upper else -0.0)


def _instant(value: int, upper: bool) -> str | None:
    text = _wall_clock(value, upper)
    return None if text is None else f"{text}Z"


def _wall_clock(value: int, upper: bool) -> str | None:
    milliseconds = -(-value // 1000) if upper else value // 1000
    try:
        moment = _EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds")


def _date(value: int, upper: bool) -> str | None:
    try:
        return dt.date.fromordinal(_DAY_ZERO + value).isoformat()
    except (OverflowError, ValueError):
        return None


def _decimal(value: str, upper: bool) -> msgspec.Raw:
    # All digits and no exponent: some readers convert numbers with one through doubles.
    return msgspec.Raw(format(Decimal(value), "f").encode())
