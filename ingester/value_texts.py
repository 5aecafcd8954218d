"""Columns as CSV cells, JSON values and cells of a table, each exact.

    numbers      decimal; float32 with the digits of a float32
    NaN, inf     nan, inf, -inf in CSV; "NaN", "Infinity", "-Infinity" in JSON
    decimals     all digits; a string in JSON
    times        ISO 8601, instants in UTC with Z; see :mod:`ingester.time_texts`
    bytes        base64
    lists, structs   JSON
    maps         lists of {"key": …, "value": …}: a key may have any type and occur twice
    intervals    ISO 8601: P1M2DT3.5S
    others       their text: times of day, unions

Encodings, such as dictionaries and views, are left out (``tests/cli/test_output_values.py``).
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingester.time_texts import time_texts

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_PLAIN_SCALE = 6  # with a larger scale Arrow writes small decimals as 1E-10


def json_values(column: pa.Array) -> list[Any]:
    """Return the column's values, ready for msgspec to encode."""
    column = _plain(column)
    kind, t = column.type, pa.types
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_string(kind) or t.is_null(kind):
        return list(column.to_pylist())
    if t.is_floating(kind):
        return _floats(column)
    if t.is_decimal(kind):
        return _each(column, lambda value: f"{value:f}")
    if t.is_binary(kind):
        return _each(column, lambda value: base64.b64encode(value).decode())
    if t.is_date32(kind) or t.is_timestamp(kind):
        # A fraction of zeros is omitted.
        texts = pc.replace_substring_regex(time_texts(column, "T"), r"\.0+(Z?)$", r"\1")
        return list(texts.to_pylist())
    if t.is_struct(kind):
        return _structs(column)
    if t.is_map(kind) or hasattr(kind, "value_field"):
        return _lists(column)
    return _each(column, _interval if t.is_interval(kind) else str)


def csv_cells(column: pa.Array) -> pa.Array:
    """Return the column's cells: text is quoted, null stays null."""
    column = _plain(column)
    kind, t = column.type, pa.types
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_null(kind):
        return column.cast(pa.large_string())
    if t.is_floating(kind):
        texts = column.cast(pa.large_string())
        # 1.0 and not 1, so that a reader infers a float.
        return pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    if t.is_decimal(kind):
        if kind.scale <= _PLAIN_SCALE:
            return column.cast(pa.large_string())
        return pa.array(json_values(column), pa.large_string())
    if t.is_date32(kind) or t.is_timestamp(kind):
        return time_texts(column, " ").cast(pa.large_string())
    return _quoted(column if t.is_string(kind) else pa.array(_json(column), pa.large_string()))


def table_cells(column: pa.Array) -> list[str | None]:
    """Return the values as a table shows them: times as Python prints them, nested ones as JSON."""
    column = _plain(column)
    kind, t = column.type, pa.types
    if t.is_timestamp(kind) or t.is_date32(kind):
        return _times(column)
    is_plain = t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_null(kind)
    if is_plain or t.is_decimal(kind):
        texts: list[str | None] = csv_cells(column).to_pylist()
        return texts
    return _json(column)


def quoted_text(text: str) -> str:
    """A text as a CSV cell."""
    return '"' + text.replace('"', '""') + '"'


def _quoted(texts: pa.Array) -> pa.Array:
    quote = pa.scalar('"', pa.large_string())
    doubled = pc.replace_substring(texts.cast(pa.large_string()), '"', '""')
    return pc.binary_join_element_wise(quote, doubled, quote, pa.scalar("", pa.large_string()))


def _floats(column: pa.Array) -> list[Any]:
    if pa.types.is_float64(column.type):
        found: list[Any] = column.to_pylist()
        if pc.all(pc.is_finite(column)).as_py() is False:
            found = [_NOT_FINITE.get(str(value), value) for value in found]
        return found
    texts = column.cast(pa.string()).to_pylist()
    return [None if text is None else _NOT_FINITE.get(text) or _number(text) for text in texts]


def _number(text: str) -> msgspec.Raw:
    whole = text.removeprefix("-").isdigit()
    return msgspec.Raw(f"{text}.0".encode() if whole else text.encode())


def _structs(column: pa.Array) -> list[Any]:
    # flatten() applies this slice's offset to the children.
    children = [json_values(child) for child in column.flatten()]
    rows = zip(*children, strict=True) if children else [()] * len(column)
    names = [field.name for field in column.type]
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for is_valid, row in zip(column.is_valid().to_pylist(), rows, strict=True)
    ]


def _lists(column: pa.Array) -> list[Any]:
    if not hasattr(column, "offsets") or pa.types.is_list_view(column.type):
        return [json_values(each.values) if each.is_valid else None for each in column]
    offsets = column.offsets.to_pylist()
    first = offsets[0]
    flat = json_values(column.values.slice(first, offsets[-1] - first))
    return [
        flat[start - first : end - first] if is_valid else None
        for is_valid, start, end in zip(
            column.is_valid().to_pylist(), offsets, offsets[1:], strict=False
        )
    ]


def _plain(column: pa.Array) -> pa.Array:
    """Return the column in the type that its type is another form of."""
    kind, t = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name != "arrow.uuid":
        return _plain(column.storage)
    if t.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if t.is_large_string(kind) or t.is_string_view(kind) or t.is_time(kind):
        return column.cast(pa.string())
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column.cast(pa.date32()) if t.is_date64(kind) else column


def _json(column: pa.Array) -> list[str | None]:
    """Return texts as they are, and other values as JSON."""
    encode: Callable[[object], bytes] = msgspec.json.encode
    values = json_values(column)
    return [v if v is None or isinstance(v, str) else encode(v).decode() for v in values]


def _each(column: pa.Array, text: Callable[[Any], str]) -> list[str | None]:
    return [None if value is None else text(value) for value in column.to_pylist()]


def _times(column: pa.Array) -> list[str | None]:
    if getattr(column.type, "unit", "") != "ns":
        with contextlib.suppress(OverflowError, ValueError):
            return _each(column, str)
    texts: list[str | None] = time_texts(column, "T").to_pylist()
    return texts


def _interval(found: pa.MonthDayNano) -> str:
    seconds = Decimal(found.nanoseconds).scaleb(-9).normalize()
    return f"P{found.months}M{found.days}DT{seconds:f}S"
