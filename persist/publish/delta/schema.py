"""A table's columns as Delta describes them. Pure.

    Arrow                    Delta            Arrow                        Delta
    int8, int16              byte, short      string, binary, bool         string, binary, boolean
    int32, int64             integer, long    timestamp[us] with a zone    timestamp, an instant
    float32, float64         float, double    timestamp[us] without one    timestamp_ntz
    decimal128(p, s)         decimal(p,s)     list, map, struct            array, map, struct
    date32                   date

Every column is nullable: a file written before a column was appended has no values for it. Nothing
in Delta corresponds to unsigned integers, nanoseconds and the null type. The source is Delta's
PROTOCOL.md, "Schema Serialization Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_PRIMITIVES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}
_UNSIGNED = {
    pa.uint8(): "int16",
    pa.uint16(): "int32",
    pa.uint32(): "int64",
    pa.uint64(): "int64 or decimal(20, 0)",
}


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    """The schema as Delta's JSON has it.

    Raises:
        KeyError: a column has a type that :func:`unsupported` reports.
    """
    return _struct(list(schema))


def _struct(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": f.name, "type": _type(f.type), "nullable": True, "metadata": {}}
            for f in fields
        ],
    }


def _type(kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_struct(kind):
        return _struct([kind.field(place) for place in range(kind.num_fields)])
    if t.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if t.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": True,
        }
    if t.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if t.is_timestamp(kind) and kind.unit == "us":
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _PRIMITIVES[kind]


def unsupported(schema: pa.Schema) -> tuple[str, ...]:
    """Why Delta cannot express the columns, one sentence each; empty if it can."""
    told = []
    for field in schema:
        for kind in _leaves(field.type):
            if (remedy := _remedy(kind)) is not None:
                inside = "" if kind == field.type else f" (inside {field.type})"
                told.append(f"column {field.name!r} has the type {kind}{inside}; {remedy}")
                break
    return tuple(told)


def _remedy(kind: pa.DataType) -> str | None:
    t = pa.types
    if kind in _UNSIGNED:
        return f"Delta has no unsigned integers: use {_UNSIGNED[kind]}"
    if t.is_timestamp(kind) and kind.unit != "us":
        return "Delta's timestamps have microseconds: use timestamp_unit 'us'"
    if t.is_null(kind):
        return "Delta needs a type: give it one"
    if t.is_decimal128(kind) or t.is_timestamp(kind) or kind in _PRIMITIVES:
        return None
    return "Delta has no such type: use another one"


def has_wall_clocks(schema: pa.Schema) -> bool:
    """Whether a column contains timestamps without a time zone, at any depth."""
    return any(
        pa.types.is_timestamp(kind) and not kind.tz for f in schema for kind in _leaves(f.type)
    )


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types inside a type that contain no other types."""
    if not kind.num_fields:
        yield kind
    for place in range(kind.num_fields):
        yield from _leaves(kind.field(place).type)
