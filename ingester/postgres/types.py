"""PostgreSQL's types as Arrow types, and its texts as Arrow values.

    bool, int2/4/8, oid, float4/8     the same                 date         date32
    numeric(p, s) of up to 38 digits  decimal128               timestamp    timestamp[us]
    bytea                             binary                   timestamptz  timestamp[us, UTC]
    everything else (arrays, enums, numeric without digits)    string, as PostgreSQL writes it

A domain is kept as its base type. The column's policy decides about a value that its type cannot
hold (``infinity``, BC, a year over 9999, ``NaN`` of a numeric, invalid UTF-8); no value is changed
silently (``tests/postgres/test_types.py``). Texts are converted in bulk.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.conversion import converted

_HEX_PREFIX = b"\\x"
_LARGE_BYTES = 512
"""The mean text length from which single conversion is faster than one over all texts."""
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
for _value, _digit in enumerate("0123456789abcdef"):
    _DIGITS[ord(_digit)] = _DIGITS[ord(_digit.upper())] = _value
_NUMERIC = 1700
_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_MOST_DIGITS = 38
_SHOWN_CHARACTERS = 80
# Years before 1 have BC after the day; those after 9999 have a fifth digit.
_DAY = r"\d{4}-\d\d-\d\d"


def bytes_of(texts: pa.Array) -> pa.Array:
    """Decode hex texts to a binary array; ``ArrowInvalid`` if one is malformed."""
    if not len(texts):
        return pa.array([], pa.binary())
    there = texts.is_valid() if texts.null_count else None
    if there is not None:
        texts = pc.fill_null(texts, _HEX_PREFIX)
    if not pc.all(pc.starts_with(texts, _HEX_PREFIX)).as_py():
        raise pa.ArrowInvalid("is no hex format of bytea")
    found = _bytes_singly(texts) if _are_large(texts) else _bytes_at_once(texts)
    return found if there is None else pc.if_else(there, found, pa.scalar(None, pa.binary()))


def _are_large(texts: pa.Array) -> bool:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0) > _LARGE_BYTES * len(texts)


def _bytes_singly(texts: pa.Array) -> pa.Array:
    try:
        values = [binascii.unhexlify(memoryview(text.as_buffer())[2:]) for text in texts]
    except binascii.Error as exc:
        raise pa.ArrowInvalid(f"is no bytea: {exc}") from exc
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    # Avoids a copy of a single value.
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _bytes_at_once(texts: pa.Array) -> pa.Array:
    """Decode over pairs of digits; the first pair of each text is the prefix."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    digits = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    if (offsets & 1).any():
        raise pa.ArrowInvalid("is no bytea: an odd number of digits")
    pairs = _DIGITS[digits].reshape(-1, 2)
    prefixes = offsets[:-1] >> 1
    pairs[prefixes] = 0
    if (pairs == _NO_DIGIT).any():
        raise pa.ArrowInvalid("is no bytea: it has other characters than digits")
    values = np.delete(pairs[:, 0] << 4 | pairs[:, 1], prefixes)
    ends = (offsets >> 1) - np.arange(len(offsets), dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


Policy = Literal["refuse", "null", "text"]
"""What to do with values that the column's type cannot hold: refuse the table, store null, or
keep the whole column as text."""


class ColumnType(NamedTuple):
    """How a column is kept here."""

    arrow: pa.DataType
    policy: Policy = "refuse"


class ValueNotKept(ValueError):
    """A value that the column here cannot hold."""

    def __init__(
        self,
        column: str,
        row_index: int,
        text: str,
        reason: str,
        *,
        target: str = "",
        key: str = "",
    ) -> None:
        """Describe the value.

        Args:
            text: the value as PostgreSQL writes it.
            target: the table's name here.
            key: the row's key, as ``id=7, day=2026-11-26``.
        """
        self.column, self.row_index, self.text, self.reason = column, row_index, text, reason
        self.target, self.key = target, key
        where = f"table {target!r}, " if target else ""
        row = f"row {key}, " if key else ""
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        super().__init__(f"{where}{row}column {column!r}: '{shown}' {reason}")

    def of(self, target: str, key: str) -> ValueNotKept:
        """A copy of the error, with the table's name and the row's key."""
        return ValueNotKept(
            self.column, self.row_index, self.text, self.reason, target=target, key=key
        )


def column_type(oid: int, modifier: int = -1, policy: Policy = "refuse") -> ColumnType:
    """The type here of a column with this base type.

    The policy ``text`` applies to dates, timestamps and numerics.
    """
    arrow = _arrow_type(oid, modifier)
    if policy == "text" and _has_values_without_counterpart(arrow):
        arrow = pa.string()
    return ColumnType(arrow, policy)


def _has_values_without_counterpart(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(arrow) or pa.types.is_decimal(arrow))


def _arrow_type(oid: int, modifier: int) -> pa.DataType:
    if oid == _NUMERIC:
        return _numeric_type(modifier)
    return _TYPES.get(oid, pa.string())


def _numeric_type(modifier: int) -> pa.DataType:
    """The decimal of ``numeric(precision, scale)``; scales range from -1000 to 1000 since 15."""
    if modifier < 4:
        return pa.string()
    precision, low = divmod(modifier - 4, 1 << 16)
    scale = (low & 0x7FF ^ 1024) - 1024
    digits = precision - scale if scale < 0 else max(precision, scale)
    if digits > _MOST_DIGITS:
        return pa.string()
    return pa.decimal128(digits, max(scale, 0))


def arrow_values(
    kind: ColumnType, texts: pa.Array | Sequence[str | None], column: str = ""
) -> pa.Array:
    """Convert texts as PostgreSQL sends them: ISO dates, UTC, bytea as hex.

    Args:
        texts: strings or their bytes; null for NULL.
        column: the name for errors.

    Raises:
        ValueNotKept: the type cannot hold a value, and the policy is not ``null``.
    """
    if not isinstance(texts, pa.Array):
        texts = pa.array(texts, pa.string())
    try:
        return _converted(kind.arrow, texts)
    except pa.ArrowInvalid:
        return _without_counterpart(kind, texts, column)


def _converted(arrow: pa.DataType, texts: pa.Array) -> pa.Array:
    """Convert all values at once, or raise ``ArrowInvalid``."""
    if pa.types.is_string(arrow):
        return texts.cast(arrow)
    if pa.types.is_binary(arrow):
        return bytes_of(texts.cast(pa.binary()))
    texts = texts.cast(pa.string())
    if pa.types.is_boolean(arrow):
        _demand(pc.or_(pc.equal(texts, "t"), pc.equal(texts, "f")))
        return pc.equal(texts, "t")
    values = converted(texts, arrow)
    if pa.types.is_floating(arrow):
        odd = pc.invert(pc.is_finite(values))
        if pc.any(odd).as_py():
            _demand(pc.match_substring_regex(texts.filter(odd), "^(-?Inf|NaN)"))
    return values


def _demand(holds: pa.Array) -> None:
    """Raise ``ArrowInvalid`` unless all non-null values are true."""
    if not pc.all(holds, min_count=0).as_py():
        raise pa.ArrowInvalid("does not fit")


def _pattern(arrow: pa.DataType) -> str:
    """A regular expression for the texts that a type can hold; empty if it has none."""
    if pa.types.is_date(arrow):
        return rf"^{_DAY}$"
    if pa.types.is_timestamp(arrow):
        zone = r"\+00" if arrow.tz else ""
        return rf"^{_DAY} \d\d:\d\d:\d\d(\.\d{{1,6}})?{zone}$"
    if pa.types.is_decimal(arrow):
        fraction = rf"(\.\d{{1,{arrow.scale}}})?" if arrow.scale else ""
        return rf"^-?\d{{1,{max(1, arrow.precision - arrow.scale)}}}{fraction}$"
    return ""


def _without_counterpart(kind: ColumnType, texts: pa.Array, column: str) -> pa.Array:
    """Convert texts of which at least one does not fit."""
    texts = _readable(kind, texts, column)
    if pattern := _pattern(kind.arrow):
        fits = pc.match_substring_regex(texts, pattern)
        if kind.policy != "null" and not pc.all(fits, min_count=0).as_py():
            _refuse(kind, texts, pc.index(fits, False).as_py(), column)
        texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    try:
        return _converted(kind.arrow, texts)
    except pa.ArrowInvalid:
        return _one_by_one(kind, texts, column)


def _readable(kind: ColumnType, texts: pa.Array, column: str) -> pa.Array:
    """Replace invalid UTF-8 by null, or raise :class:`ValueNotKept`."""
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return _one_by_one(ColumnType(pa.string(), kind.policy), texts, column)


def _one_by_one(kind: ColumnType, texts: pa.Array, column: str) -> pa.Array:
    found = []
    for at in range(len(texts)):
        try:
            found.append(_converted(kind.arrow, texts.slice(at, 1)))
        except pa.ArrowInvalid:
            if kind.policy != "null":
                _refuse(kind, texts, at, column)
            found.append(pa.nulls(1, kind.arrow))
    return pa.concat_arrays(found)


def _refuse(kind: ColumnType, texts: pa.Array, at: int, column: str) -> NoReturn:
    value = texts[at].as_py()
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
        raise ValueNotKept(column, at, text, "is not valid UTF-8")
    raise ValueNotKept(column, at, value, f"does not fit into {kind.arrow}")
