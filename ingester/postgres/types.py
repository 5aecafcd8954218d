"""PostgreSQL's types as Arrow's, and its texts as their values.

Law of this file: pure. What has no type of its own here stays text, as PostgreSQL writes it; a text
that its type cannot hold (``infinity``, ``NaN`` of a numeric) is refused with the column's name.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ingester.postgres.pgoutput import Column

_BOOL, _BYTEA, _NUMERIC = 16, 17, 1700
_TYPES: dict[int, pa.DataType] = {
    _BOOL: pa.bool_(),
    _BYTEA: pa.binary(),
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


class ValueNotKept(ValueError):
    """A value of the source that no column here can hold."""


def arrow_type(column: Column) -> pa.DataType:
    """The type of a column's values here."""
    if column.type_oid == _NUMERIC and column.type_modifier >= 0:
        digits, scale = divmod(column.type_modifier - 4, 1 << 16)
        scale = (scale & 0x7FF ^ 1024) - 1024
        if 0 < digits <= _MOST_DIGITS and 0 <= scale <= digits:
            return pa.decimal128(digits, scale)
    return _TYPES.get(column.type_oid, pa.string())


def arrow_values(column: Column, texts: Sequence[str | None]) -> pa.Array:
    """The values of texts as PostgreSQL sends them, with ISO dates and in UTC.

    Raises :class:`ValueNotKept`.
    """
    kind = arrow_type(column)
    if column.type_oid == _BYTEA:
        return pa.array([None if t is None else bytes.fromhex(t[2:]) for t in texts], kind)
    plain = pa.array(texts, pa.string())
    if pa.types.is_string(kind):
        return plain
    try:
        if column.type_oid == _BOOL:
            return pc.equal(plain, "t")
        return plain.cast(kind)
    except pa.ArrowInvalid as exc:
        raise ValueNotKept(f"column {column.name!r}: {exc}") from exc
