"""The stored form of each Arrow type, and the types in which Spark sees columns.

Strings, binaries and lists are stored in their plain form, a dictionary as its values, an
extension type as its storage (bool8 as bool), a decimal of up to 38 digits as decimal128;
timestamps take the table's unit. Spark has fewer types:

    uint8, uint16, uint32, uint64       int16, int32, int64, decimal(20, 0)
    timestamp[us or ns, any time zone]  timestamp[us, UTC]: an instant
    timestamp[us or ns]                 timestamp[us]: a wall clock

What Spark writes back may have the type it saw, or one whose values fit the table's type one by
one (:func:`takes`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import BadRequest

_LISTS = {
    getattr(pa.lib, f"Type_{name}")
    for name in ("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW")
}
_MAX_DEPTH = 32
_MAX_DIGITS = 38
"""The most digits of a decimal that Parquet readers such as Spark support."""
# Java's offsets, and so Spark's, end at 18 hours. Python does not parse "+0100".
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00")
_REMEDIES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_float16, "cast it to float32"),
    (pa.types.is_time, "cast it to int64, or send a timestamp"),
    (pa.types.is_duration, "cast it to int64, and say {kind.unit!r} in the column's name"),
    (pa.types.is_interval, "send its parts as integers"),
    (pa.types.is_date64, "cast it to date32"),
    (pa.types.is_decimal, "cast it to decimal128, or send a string"),
    (pa.types.is_union, "send a column for each of its types"),
    (pa.types.is_run_end_encoded, "decode it (pyarrow.compute.run_end_decode)"),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "send its storage, {kind.storage_type}"),
)
_LOCAL_ZONE = "localtime"
"""The one IANA name that means a different zone on each machine."""
_LONGEST_ZONE = 64
"""Longer than any IANA name."""


def table_type(column: str, kind: pa.DataType, unit: str) -> pa.DataType:
    """Return the stored type for a sent type.

    Args:
        unit: the table's timestamp unit, ``us`` or ``ns``.

    Raises:
        BadRequest: the type cannot be stored; the message names column and type.
    """
    return _kept(column, kind, kind, unit, 0)


def _kept(column: str, sent: pa.DataType, kind: pa.DataType, unit: str, depth: int) -> pa.DataType:
    t = pa.types
    if depth > _MAX_DEPTH:
        raise BadRequest(f"column {column!r}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return _kept(column, sent, kind.storage_type, unit, depth + 1)
    if t.is_decimal(kind):
        return _kept_decimal(column, sent, kind)
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_date32(kind):
        return kind
    if t.is_float32(kind) or t.is_float64(kind) or t.is_null(kind):
        return kind
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if (
        t.is_binary(kind)
        or t.is_large_binary(kind)
        or t.is_binary_view(kind)
        or t.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if t.is_timestamp(kind):
        _check_zone(column, kind)
        return pa.timestamp(unit, tz=kind.tz or None)
    if t.is_dictionary(kind):
        if t.is_dictionary(kind.value_type):
            raise _not_supported(column, sent, kind, "send the values of the inner one")
        return _kept(column, sent, kind.value_type, unit, depth + 1)
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        _check_struct(column, fields)
        return pa.struct(
            [pa.field(f.name, _kept(column, sent, f.type, unit, depth + 1)) for f in fields]
        )
    if t.is_map(kind):
        return pa.map_(
            _kept(column, sent, kind.key_type, unit, depth + 1),
            _kept(column, sent, kind.item_type, unit, depth + 1),
        )
    if kind.id in _LISTS:
        return pa.list_(_kept(column, sent, kind.value_type, unit, depth + 1))
    raise _not_supported(column, sent, kind)


def _not_supported(
    column: str, sent: pa.DataType, kind: pa.DataType, remedy: str | None = None
) -> BadRequest:
    inside = "" if kind == sent else f" (inside {sent})"
    helps = _remedy(kind) if remedy is None else f"; {remedy}"
    return BadRequest(f"column {column!r}: type {kind}{inside} is not supported{helps}")


def _kept_decimal(column: str, sent: pa.DataType, kind: pa.DataType) -> pa.DataType:
    if kind.scale < 0:
        remedy = "Parquet has no negative scales: cast it to scale 0"
        raise _not_supported(column, sent, kind, remedy)
    if kind.precision > _MAX_DIGITS:
        raise _not_supported(column, sent, kind)
    # Arrow permits fewer digits than decimals; Parquet does not.
    return pa.decimal128(max(kind.precision, kind.scale), kind.scale)


def _check_zone(column: str, kind: pa.DataType) -> None:
    if kind.tz and not is_zone(kind.tz):
        raise BadRequest(
            f"column {column!r}: {kind.tz!r} is not a zone that Arrow, Spark and DuckDB know; use"
            " 'UTC', an offset like '+01:00', or an IANA name like 'Europe/Berlin'"
        )


def _check_struct(column: str, fields: list[pa.Field]) -> None:
    if not fields:
        raise BadRequest(f"column {column!r}: a struct without fields cannot be stored")
    names = [field.name.casefold() for field in fields]
    if len(set(names)) != len(names) or not all(names):
        raise BadRequest(f"column {column!r}: struct field names must differ and not be empty")


def has_no_type(kind: pa.DataType) -> bool:
    """Return whether a type, or one inside it, is null, so that its values' type is unknown."""
    if not (inside := kind.num_fields):
        return bool(kind.id == pa.lib.Type_NA)
    return any(has_no_type(kind.field(i).type) for i in range(inside))


def widens(sent: pa.DataType, kept: pa.DataType) -> bool:
    """Return whether every value of ``sent`` is a value of ``kept`` without loss.

    A narrower integer or float into a wider one, a decimal into more digits at the same scale,
    null into anything. Nothing between integers and floats, and no change of time zone.
    """
    t = pa.types
    if sent.equals(kept) or t.is_null(sent):
        return True
    if t.is_integer(sent) and t.is_integer(kept):
        if t.is_signed_integer(sent) == t.is_signed_integer(kept):
            return bool(sent.bit_width <= kept.bit_width)
        return bool(t.is_unsigned_integer(sent) and sent.bit_width < kept.bit_width)
    if t.is_floating(sent) and t.is_floating(kept):
        return bool(sent.bit_width <= kept.bit_width)
    if t.is_decimal128(sent) and t.is_decimal128(kept):
        return bool(sent.scale == kept.scale and sent.precision <= kept.precision)
    if t.is_list(sent) and t.is_list(kept):
        return widens(sent.value_type, kept.value_type)
    if t.is_map(sent) and t.is_map(kept):
        return widens(sent.key_type, kept.key_type) and widens(sent.item_type, kept.item_type)
    if t.is_struct(sent) and t.is_struct(kept):
        return sent.num_fields == kept.num_fields and all(
            sent.field(i).name == kept.field(i).name
            and widens(sent.field(i).type, kept.field(i).type)
            for i in range(sent.num_fields)
        )
    return False


def is_zone(name: str) -> bool:
    """Return whether every reader of a table knows this time zone.

    A type may name any text as its zone, which nothing checks until it is read; then Arrow,
    Python and Spark each fail for ever. Valid are names in the machine's IANA database and
    offsets in the common format.
    """
    if name[:1] in ("+", "-"):
        return _OFFSET.fullmatch(name) is not None
    return len(name) <= _LONGEST_ZONE and name != _LOCAL_ZONE and _is_found(name)


@lru_cache(maxsize=1024)
def _is_found(name: str) -> bool:
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("s", name)))
    except (pa.ArrowException, ValueError):
        return False
    return True


def _remedy(kind: pa.DataType) -> str:
    """Return a hint what to send instead of an unsupported type, or ""."""
    found = next((text for is_kind, text in _REMEDIES if is_kind(kind)), "")
    return found and f"; {found.format(kind=kind)}"


def clash_remedy(sent: pa.DataType, kept: pa.DataType) -> str:
    """Return a hint how to convert ``sent`` to the table's type."""
    t = pa.types
    if t.is_timestamp(sent) and t.is_timestamp(kept):
        if sent.tz and kept.tz:
            return f"; cast it to {kept}: the same moments in the table's zone"
        if kept.tz:
            return "; say in which zone its times are (pyarrow.compute.assume_timezone)"
        return "; send local times (pyarrow.compute.local_timestamp), as the table has no zone"
    return f"; cast it to {kept} before sending, or use another column name"


_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def carrier(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which a column's values go to Spark; every value fits."""
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
    """Return the Arrow type that Spark users see for a column; nanoseconds appear as a
    timestamp.
    """
    if is_nanoseconds(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    return carrier(kind)


def is_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether a timestamp has nanoseconds, which Spark cannot represent."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def takes(kind: pa.DataType, given: pa.DataType) -> bool:
    """Return whether values can be converted to the table's type one by one without change.

    Whether each value fits is decided by the conversion.
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
    """Return whether types are equal, ignoring list field names and large variants."""
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
