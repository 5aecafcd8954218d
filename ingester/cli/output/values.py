"""Columns as CSV cells and JSON values, each exact.

    numbers      decimal; float32 with the digits of a float32
    NaN, inf     nan, inf, -inf in CSV; "NaN", "Infinity", "-Infinity" in JSON
    decimals     all digits; a string in JSON
    times        ISO 8601, instants in UTC with Z; see :mod:`ingester.time_texts`
    bytes        base64
    lists, structs   JSON
    maps         lists of {"key": …, "value": …}: a key may have any type and occur twice

A type without such a form is refused with the column's name (``tests/cli/test_output_values.py``).
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingester.time_texts import time_texts

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_PLAIN_SCALE = 6  # with a larger scale Arrow writes small decimals as 1E-10


def json_values(name: str, column: pa.Array) -> list[Any]:
    """The column's values, ready for msgspec to encode."""
    kind, t = column.type, pa.types
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_string(kind) or t.is_null(kind):
        return list(column.to_pylist())
    if t.is_floating(kind):
        return _floats(column)
    if t.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    if t.is_binary(kind):
        values = column.to_pylist()
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    if t.is_date32(kind) or t.is_timestamp(kind):
        # A fraction of zeros is omitted.
        texts = pc.replace_substring_regex(time_texts(column, "T"), r"\.0+(Z?)$", r"\1")
        return list(texts.to_pylist())
    if t.is_nested(kind):
        return _nested(name, column)
    raise TypeError(f"column {name!r}: no table has the type {kind}")


def csv_cells(name: str, column: pa.Array) -> pa.Array:
    """The column's cells: text is quoted, null stays null."""
    kind, t = column.type, pa.types
    if t.is_string(kind):
        return _quoted(column)
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_null(kind):
        return column.cast(pa.large_string())
    if t.is_floating(kind):
        texts = column.cast(pa.large_string())
        # 1.0 and not 1, so that a reader infers a float.
        return pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    if t.is_decimal(kind):
        if kind.scale <= _PLAIN_SCALE:
            return column.cast(pa.large_string())
        return pa.array(json_values(name, column), pa.large_string())
    if t.is_date32(kind) or t.is_timestamp(kind):
        return time_texts(column, " ").cast(pa.large_string())
    if t.is_binary(kind):
        return _quoted(pa.array(json_values(name, column), pa.large_string()))
    if t.is_nested(kind):
        encode: Callable[[object], bytes] = msgspec.json.encode
        values = json_values(name, column)
        texts = [None if value is None else encode(value).decode() for value in values]
        return _quoted(pa.array(texts, pa.large_string()))
    raise TypeError(f"column {name!r}: no table has the type {kind}")


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


def _nested(name: str, column: pa.Array) -> list[Any]:
    kind, t = column.type, pa.types
    valid = column.is_valid().to_pylist()
    if t.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        # flatten() applies this slice's offset to the children.
        children = [json_values(name, child) for child in column.flatten()]
        rows = zip(*children, strict=True)
        return [
            dict(zip(names, row, strict=True)) if is_valid else None
            for is_valid, row in zip(valid, rows, strict=True)
        ]
    offsets = column.offsets.to_pylist()
    first, last = (offsets[0], offsets[-1]) if offsets else (0, 0)
    if t.is_map(kind):
        keys = json_values(name, column.keys.slice(first, last - first))
        items = json_values(name, column.items.slice(first, last - first))
        pairs = zip(keys, items, strict=True)
        flat: list[Any] = [{"key": key, "value": value} for key, value in pairs]
    else:
        flat = json_values(name, column.values.slice(first, last - first))
    return [
        flat[start - first : end - first] if is_valid else None
        for is_valid, start, end in zip(valid, offsets, offsets[1:], strict=False)
    ]
