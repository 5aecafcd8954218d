"""Columns of an SQL answer as JSON values that lose nothing in JavaScript.

    integers         numbers up to 2^53 - 1, beyond that strings
    decimals         strings with all digits
    NaN, inf         "NaN", "Infinity", "-Infinity"
    times            ISO 8601, instants in UTC with Z; see :mod:`ingester.time_texts`
    bytes            hexadecimal
    lists, structs   arrays, objects; a map is an array of {"key": …, "value": …}
    intervals        ISO 8601: P1M2DT3.5S
    others           their text: times of day, unions

A text or bytes beyond ``MAX_TEXT_BYTES``, and a list or a map beyond ``MAX_LIST_BYTES``, is cut and
says so. Invalid UTF-8 is replaced. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingester.time_texts import time_texts

MAX_TEXT_BYTES = 4096
MAX_LIST_BYTES = 64 << 10
"""A list's size as Arrow data."""
MAX_SAFE_INTEGER = (1 << 53) - 1
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
Values = list[Any]
Convert = Callable[[Any], object]


class JsonValues:
    """Converts columns, and remembers whether it has cut a value."""

    def __init__(self) -> None:
        self.cut = False

    def of(self, column: pa.Array) -> Values:
        """Return a column's values, ready for msgspec to encode."""
        kind, t = column.type, pa.types
        if isinstance(kind, pa.BaseExtensionType):
            return self.of(column.storage)
        if t.is_dictionary(kind):
            return self.of(column.dictionary_decode())
        if t.is_boolean(kind) or t.is_null(kind):
            return list(column.to_pylist())
        if t.is_integer(kind):
            return _each(column, lambda n: n if abs(n) <= MAX_SAFE_INTEGER else str(n))
        if t.is_floating(kind):
            # By its text, a float32 has no digits that it does not know.
            return _each(column.cast(pa.string()), lambda s: _NOT_FINITE.get(s) or float(s))
        if t.is_decimal(kind):
            return _each(column, lambda number: f"{number:f}")
        if t.is_date32(kind) or t.is_timestamp(kind):
            texts = time_texts(column, "T")
            return list(pc.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1").to_pylist())
        if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
            return self._short(column, lambda data: data.decode(errors="replace"))
        if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
            return self._short(column, bytes.hex)
        if t.is_fixed_size_binary(kind):
            return self._short(column.cast(pa.binary()), bytes.hex)
        return self._nested(column)

    def _nested(self, column: pa.Array) -> Values:
        kind = column.type
        if pa.types.is_struct(kind):
            names = [field.name for field in kind]
            # flatten() applies the offset and the nulls of this slice to the children.
            rows = (
                zip(*map(self.of, column.flatten()), strict=True) if names else [()] * len(column)
            )
            valid = column.is_valid().to_pylist()
            return [
                dict(zip(names, row, strict=True)) if is_valid else None
                for row, is_valid in zip(rows, valid, strict=True)
            ]
        if pa.types.is_time(kind):
            return list(column.cast(pa.string()).to_pylist())
        if pa.types.is_interval(kind):
            return _each(column, _interval)
        if pa.types.is_map(kind) or hasattr(kind, "value_field"):
            return [self._list(each.values) if each.is_valid else None for each in column]
        return _each(column, str)

    def _list(self, values: pa.Array) -> object:
        if values.nbytes > MAX_LIST_BYTES:
            self.cut = True
            return f"… ({values.nbytes:,} bytes; cut)"
        return self.of(values)

    def _short(self, column: pa.Array, shown: Callable[[bytes], str]) -> Values:
        """Return texts or bytes as ``shown``, the long ones without their end."""

        def short(each: Any) -> str | None:
            if not each.is_valid:
                return None
            # The buffer is not copied: a value may have a gigabyte.
            data = each.as_buffer()
            if data.size <= MAX_TEXT_BYTES:
                return shown(data.to_pybytes())
            self.cut = True
            return (
                f"{shown(data.slice(0, MAX_TEXT_BYTES).to_pybytes())}… ({data.size:,} bytes; cut)"
            )

        return [short(each) for each in column]


def _each(column: pa.Array, convert: Convert) -> Values:
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _interval(found: pa.MonthDayNano) -> str:
    seconds = Decimal(found.nanoseconds).scaleb(-9).normalize()
    return f"P{found.months}M{found.days}DT{seconds:f}S"
