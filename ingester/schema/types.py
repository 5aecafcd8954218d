"""The Arrow types that tables keep, and the form in which each sent type is kept.

Law of this file: a pure mapping. Strings, binaries and lists are kept in their plain form, whatever
form was sent; a dictionary is kept as its values, an extension type as its storage (bool8 as bool),
a decimal of up to 38 digits as decimal128; timestamps take the table's unit.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import InvalidRequest

_LISTS = {
    getattr(pa.lib, f"Type_{name}")
    for name in ("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW")
}
_MAX_DEPTH = 32
_MAX_DIGITS = 38
"""The most digits of a decimal that Parquet's readers know, Spark among them."""
# Java's offsets, and so Spark's, end at 18 hours; Python does not read "+0100".
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
"""The one name of the IANA database that means another zone on another machine."""
_LONGEST_ZONE = 64
"""A length that no name of the database has, though a text that somebody sends may."""


def table_type(column: str, kind: pa.DataType, unit: str) -> pa.DataType:
    """The type a table keeps for a sent type.

    Args:
        unit: the table's timestamp unit, ``us`` or ``ns``.

    Raises:
        InvalidRequest: the type cannot be kept; the message names column and type.
    """
    return _kept(column, kind, kind, unit, 0)


def _kept(column: str, sent: pa.DataType, kind: pa.DataType, unit: str, depth: int) -> pa.DataType:
    t = pa.types
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"column {column!r}: nested more than {_MAX_DEPTH} levels deep")
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
) -> InvalidRequest:
    inside = "" if kind == sent else f" (inside {sent})"
    helps = _remedy(kind) if remedy is None else f"; {remedy}"
    return InvalidRequest(f"column {column!r}: type {kind}{inside} is not supported{helps}")


def _kept_decimal(column: str, sent: pa.DataType, kind: pa.DataType) -> pa.DataType:
    if kind.scale < 0:
        remedy = "Parquet has no negative scales: cast it to scale 0"
        raise _not_supported(column, sent, kind, remedy)
    if kind.precision > _MAX_DIGITS:
        raise _not_supported(column, sent, kind)
    return pa.decimal128(kind.precision, kind.scale)


def _check_zone(column: str, kind: pa.DataType) -> None:
    if kind.tz and not is_zone(kind.tz):
        raise InvalidRequest(
            f"column {column!r}: {kind.tz!r} is no time zone that Arrow, Spark and DuckDB know; use"
            " 'UTC', an offset as '+01:00', or a name of the IANA database as 'Europe/Berlin'"
        )


def _check_struct(column: str, fields: list[pa.Field]) -> None:
    if not fields:
        raise InvalidRequest(f"column {column!r}: a struct without fields cannot be stored")
    names = [field.name.casefold() for field in fields]
    if len(set(names)) != len(names) or not all(names):
        raise InvalidRequest(f"column {column!r}: struct field names must differ and not be empty")


def has_no_type(kind: pa.DataType) -> bool:
    """Whether a type, or one inside it, is null: nothing is known of its values yet."""
    if not (inside := kind.num_fields):
        return bool(kind.id == pa.lib.Type_NA)
    return any(has_no_type(kind.field(i).type) for i in range(inside))


def widens(sent: pa.DataType, kept: pa.DataType) -> bool:
    """Whether every value of ``sent`` is a value of ``kept`` without loss.

    A narrower integer or float into a wider one, a decimal into more digits at the same scale, null
    into anything; nothing between integers and floats, and no change of time zone.
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
    """Whether everybody who reads a table knows this zone.

    A type may have any text for a zone, and nothing looks at it until somebody reads: then Arrow's
    kernels, Python and Spark each end in an error of their own, for ever. A name counts that Arrow
    finds in the machine's IANA database, and an offset in the form that all of them read.
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
    """A hint what to send instead of a type that no table keeps; empty where nothing helps."""
    found = next((text for is_kind, text in _REMEDIES if is_kind(kind)), "")
    return found and f"; {found.format(kind=kind)}"


def clash_remedy(sent: pa.DataType, kept: pa.DataType) -> str:
    """Say what makes ``sent`` a type that the table's ``kept`` takes, in Arrow's terms."""
    t = pa.types
    if t.is_timestamp(sent) and t.is_timestamp(kept):
        if sent.tz and kept.tz:
            return f"; cast it to {kept}: the same moments in the table's zone"
        if kept.tz:
            return "; say in which zone its times are (pyarrow.compute.assume_timezone)"
        return "; send local times (pyarrow.compute.local_timestamp), as the table has no zone"
    return f"; cast it to {kept} before sending, or write it as a column of another name"
