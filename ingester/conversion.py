"""Conversion of columns to another type in which every value stays the same, or a refusal. Pure.

Arrow's casts check most values, but not all: decimals that need more than 128 bits wrap around, and
floats and fractions are rounded. Every entrance of values converts here
(tests/schema/test_conversion, tests/house/test_casts).

An integer that a float cannot hold without gaps (beyond 2^24 or 2^53) is refused as a float. A
text's value is what it says, with one exception: a fraction such as ``0.1`` becomes the nearest
float, as everywhere. A text that is a whole number must be that number as a float, too, and one
beyond a float's range is not infinity.
"""

from __future__ import annotations

import bisect
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

_WIDEST = 76
"""Digits of a decimal256: enough for any decimal128 at any scale of a decimal128."""
_SHOWN_CHARACTERS = 80
_WHOLE_NUMBER = r"^[+-]?\d+(\.0*)?$"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"


class NotExact(pa.ArrowInvalid):  # type: ignore[misc]
    """A value that a type cannot hold as it is.

    Attributes:
        index: the first such row.
        value: the row's value as text, shortened.
    """

    def __init__(self, index: int, column: pa.Array, kind: pa.DataType) -> None:
        self.index = index
        self.value = _shown(column[index])
        super().__init__(f"{self.value} is not a value of {kind}")


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column in another type, every value unchanged. Nulls stay null.

    Args:
        column: any Arrow array, nested ones too. Texts are parsed as by Arrow.

    Raises:
        NotExact: a value has no equal of the type.
        pa.ArrowNotImplementedError: Arrow has no conversion between the types.
    """
    if column.type.equals(kind):
        return column
    try:
        return _converted(column, kind)
    except pa.ArrowNotImplementedError:
        raise
    except pa.ArrowException:
        raise NotExact(_first_unfit(column, kind), column, kind) from None


def _first_unfit(column: pa.Array, kind: pa.DataType) -> int:
    """Return the first row that is refused, by bisection. There is one."""

    def has_unfit(end: int) -> bool:
        try:
            _converted(column.slice(0, end + 1), kind)
        except pa.ArrowException:
            return True
        return False

    return bisect.bisect_left(range(len(column) - 1), True, key=has_unfit)


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert, or raise ``ArrowInvalid``."""
    t = pa.types
    if _is_text(column.type) and t.is_decimal128(kind):
        return _decimals_of(column, kind)
    wide = _with_wide_decimals(kind)
    if wide.equals(kind):
        made = column.cast(kind)
    else:
        # Arrow checks a decimal's digits, but after a multiplication that may have wrapped around.
        made = column.cast(wide).cast(kind)
    if _may_round(column.type, kind):
        _check_same(column, made)
    return made


def _decimals_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    wide = pa.decimal256(_WIDEST, kind.scale)
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest <= _WIDEST:
        return texts.cast(wide).cast(kind)
    try:
        values = [None if text is None else Decimal(text) for text in texts.to_pylist()]
    except InvalidOperation:
        raise pa.ArrowInvalid("no number") from None
    return pa.array(values, kind)


def _with_wide_decimals(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_decimal128(kind):
        return pa.decimal256(_WIDEST, kind.scale)
    if t.is_list(kind):
        return pa.list_(_wide_field(kind.value_field))
    if t.is_large_list(kind):
        return pa.large_list(_wide_field(kind.value_field))
    if t.is_struct(kind):
        return pa.struct([_wide_field(kind.field(i)) for i in range(kind.num_fields)])
    if t.is_map(kind):
        return pa.map_(_wide_field(kind.key_field), _wide_field(kind.item_field))
    return kind


def _wide_field(field: pa.Field) -> pa.Field:
    return field.with_type(_with_wide_decimals(field.type))


def _may_round(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow converts some values to others."""
    t = pa.types
    if t.is_dictionary(given):
        return _may_round(given.value_type, kind)
    if given.num_fields or kind.num_fields:
        return given.num_fields == kind.num_fields and any(
            _may_round(given.field(i).type, kind.field(i).type) for i in range(kind.num_fields)
        )
    if t.is_floating(kind):
        narrower = t.is_floating(given) and given.bit_width > kind.bit_width
        return bool(narrower or t.is_decimal(given) or _is_text(given))
    if t.is_integer(kind):
        return _is_text(given) and t.is_signed_integer(kind)
    if t.is_boolean(kind):
        return not (t.is_boolean(given) or _is_text(given))
    return bool(t.is_floating(given) and t.is_decimal(kind))


def _check_same(column: pa.Array, made: pa.Array) -> None:
    """Raise ``ArrowInvalid`` if a value differs where Arrow may have changed it."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if made.type.num_fields:
        for before, after in zip(_inside(column), _inside(made), strict=True):
            _check_same(before, after)
        return
    if not _may_round(column.type, made.type):
        return
    if _is_text(column.type):
        if pa.types.is_integer(made.type):
            _check_signs(column, made)
        else:
            _check_finite(column, made)
            _check_whole_numbers(column, made)
        return
    if pa.types.is_decimal(made.type):
        same = _to_the_last_digit(column) == made.to_pylist()
    elif pa.types.is_decimal(column.type):
        same = _to_the_last_digit(made) == column.to_pylist()
    else:
        back = made.cast(column.type)
        same = pc.all(pc.or_(pc.equal(back, column), pc.is_nan(column)), min_count=0).as_py()
    if not same:
        raise pa.ArrowInvalid("a value would be rounded")


def _to_the_last_digit(floats: pa.Array) -> list[Decimal | None]:
    return [None if value is None else Decimal(value) for value in floats.to_pylist()]


def _check_signs(texts: pa.Array, integers: pa.Array) -> None:
    # Arrow reads 0xff as an int8 of -1.
    negative = texts.filter(pc.less(integers, 0))
    if not pc.all(pc.match_substring(negative, "-"), min_count=0).as_py():
        raise pa.ArrowInvalid("a number is beyond the type's range")


def _check_finite(texts: pa.Array, floats: pa.Array) -> None:
    infinite = texts.filter(pc.is_inf(floats))
    if not pc.all(pc.match_substring_regex(infinite, _INFINITE), min_count=0).as_py():
        raise pa.ArrowInvalid("a number is beyond the type's range")


def _check_whole_numbers(texts: pa.Array, floats: pa.Array) -> None:
    digits = 7 if floats.type.bit_width <= 32 else 15
    long = pc.and_(
        pc.greater(pc.utf8_length(texts), digits), pc.match_substring_regex(texts, _WHOLE_NUMBER)
    )
    long = pc.fill_null(long, False)
    for text, value in zip(
        texts.filter(long).to_pylist(), floats.filter(long).to_pylist(), strict=True
    ):
        if Decimal(text) != Decimal(value):
            raise pa.ArrowInvalid(f"{text} would be rounded")


def _inside(column: pa.Array) -> list[pa.Array]:
    """Return the values inside of a nested column, without those of null rows."""
    t = pa.types
    if t.is_struct(column.type):
        return list(column.flatten())
    if t.is_map(column.type):
        entries = column.cast(pa.list_(column.type.field(0))).flatten()
        return list(entries.flatten())
    return [column.flatten()]


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _shown(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py()) if _is_text(value.type) else str(value)
    except (OverflowError, ValueError):  # a time beyond Python's
        text = str(value.cast(pa.int32() if value.type == pa.date32() else pa.int64()))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
