"""The types in which values of a table's columns are seen by those who have fewer types: Spark.

    uint8, uint16, uint32, uint64       int16, int32, int64, decimal(20, 0)
    timestamp[us or ns, any time zone]  timestamp[us, UTC]: an instant
    timestamp[us or ns]                 timestamp[us]: a wall clock

Law of this file: pure, and a mapping of types alone. What comes back may come in the type that was
seen, or in one whose values the table's type can hold one by one: :func:`takes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def carrier(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which values of a table's type go to Spark; every value fits."""
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if is_nanoseconds(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_list(kind):
        return pa.list_(carrier(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, carrier(f.type)) for f in fields])
    return kind


def seen_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which Spark's users see values of a column: a timestamp, also where
    nanoseconds are carried."""
    if is_nanoseconds(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    return carrier(kind)


def is_nanoseconds(kind: pa.DataType) -> bool:
    """True of a timestamp that Spark's timestamps cannot hold exactly."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def takes(kind: pa.DataType, given: pa.DataType) -> bool:
    """True where values can be brought to the table's type one by one, none of them changed.

    Whether each of them fits is for the conversion to tell.
    """
    if kind == given or same_type(seen_type(kind), given) or pa.types.is_null(given):
        return True
    t = pa.types
    narrower: Sequence[bool] = (
        t.is_integer(kind) and t.is_integer(given),
        t.is_integer(kind) and t.is_decimal(given) and given.scale == 0,
        t.is_float64(kind) and t.is_float32(given),
        t.is_decimal(kind) and t.is_decimal(given) and given.scale <= kind.scale,
    )
    return any(narrower)


def same_type(kind: pa.DataType, given: pa.DataType) -> bool:
    """Equal, whatever the fields of lists are called, and however long texts may be."""
    t = pa.types
    if t.is_list(kind):
        return (t.is_list(given) or t.is_large_list(given)) and same_type(
            kind.value_type, given.value_type
        )
    if t.is_map(kind):
        return (
            t.is_map(given)
            and same_type(kind.key_type, given.key_type)
            and same_type(kind.item_type, given.item_type)
        )
    if t.is_struct(kind):
        if not t.is_struct(given) or kind.num_fields != given.num_fields:
            return False
        pairs = [(kind.field(i), given.field(i)) for i in range(kind.num_fields)]
        return all(mine.name == its.name and same_type(mine.type, its.type) for mine, its in pairs)
    if t.is_string(kind):
        return bool(t.is_string(given) or t.is_large_string(given))
    if t.is_binary(kind):
        return bool(t.is_binary(given) or t.is_large_binary(given))
    return bool(kind == given)
