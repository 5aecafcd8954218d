"""What the source is asked for, so that its texts are those that ``copy_texts`` makes of a copy.

    column ──▶ expression ──▶ COPY … TO STDOUT ──▶ blocks of bytes ──▶ Texts of each column

Law of this file: pure. A source's column is written by the output function of its type, as in the
log, and never cast to text: ``char(5)`` would lose its blanks. What a copy keeps as null by the
policy of its column is null here too, by a look at the text and not by reading its value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingester.postgres.verify.row_hashes import Texts

_FLOAT4, _FLOAT8, _BYTEA = 700, 701, 17
_TAB, _LINE = 9, 10
_NULL = np.frombuffer(b"\\N", "<u2")[0]
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789")] = True


_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_LETTERS = {b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
Form = Literal["text", "bits", "hex"]
"""The text of the type's output function; the bits of a floating point number, or bytes, as
hexadecimal digits."""


class Asked(NamedTuple):
    """A column of the source, and how the copy keeps it."""

    name: str
    base_oid: int
    kept: pa.DataType | None
    """The type of the copy's column; None where the copy has no such column."""
    nulls: bool
    """Values without a counterpart are null in the copy."""

    @property
    def form(self) -> Form:
        """The form in which the source writes values, and the copy's are written."""
        if self.base_oid in (_FLOAT4, _FLOAT8):
            floating = self.kept is None or pa.types.is_floating(self.kept)
            return "bits" if floating else "text"
        if self.base_oid == _BYTEA and self.kept is not None and pa.types.is_binary(self.kept):
            return "hex"
        return "text"


def expression(column: Asked, quoted: str) -> str:
    """The SQL expression that is asked for; ``quoted`` is the column's name in quotes."""
    if column.form == "bits":
        size = 4 if column.base_oid == _FLOAT4 else 8
        kind = f"pg_catalog.float{size}"
        one_nan = f"CASE WHEN {quoted} = 'NaN'::{kind} THEN 'NaN'::{kind} ELSE {quoted} END"
        return f"pg_catalog.encode(pg_catalog.float{size}send({one_nan}), 'hex')"
    return f"pg_catalog.encode({quoted}, 'hex')" if column.form == "hex" else quoted


def shown_value(column: Asked, text: bytes) -> str:
    """The value as people know it; of a text that is cut, what there is of it."""
    if column.form == "hex":
        return "\\x" + text.decode()
    if column.form == "bits":
        bits = np.frombuffer(bytes.fromhex(text.decode()), f">f{len(text) // 2}")[0]
        return str(bits.astype(bits.dtype.newbyteorder("=")))
    return unescaped(text).decode(errors="replace")


def unescaped(text: bytes) -> bytes:
    """The value that a text of ``COPY`` stands for."""
    if b"\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _LETTERS.get(found[1], found[1]), text)


def parse_block(block: bytes, columns: Sequence[Asked]) -> list[Texts]:
    """The texts of each column of some whole lines of COPY's text format.

    Raises:
        ValueError: a line has another number of columns.
    """
    data = np.frombuffer(block + b"\0" * 8, np.uint8)
    ends = np.flatnonzero((data[:-8] == _TAB) | (data[:-8] == _LINE))
    if len(ends) % len(columns) or (data[ends[len(columns) - 1 :: len(columns)]] != _LINE).any():
        raise ValueError(f"COPY: a line has not {len(columns)} columns")
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    shape = (-1, len(columns))
    return [
        _column(data, np.ascontiguousarray(first), np.ascontiguousarray(end - first), column)
        for first, end, column in zip(
            begins.reshape(shape).T, ends.reshape(shape).T, columns, strict=True
        )
    ]


def _column(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    column: Asked,
) -> Texts:
    words = np.ndarray((len(data) - 1,), "<u2", data, 0, (1,))
    nulls = (lengths == 2) & (words[starts] == _NULL)
    if column.nulls and column.kept is not None:
        nulls |= ~_has_counterpart(data, starts, lengths, column.kept)
    return Texts(data, starts, lengths, nulls if nulls.any() else None)


def _has_counterpart(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    kept: pa.DataType,
) -> npt.NDArray[np.bool_]:
    """Whether a value of the copy's type can be what each text says, by its first characters."""
    digit: npt.NDArray[np.bool_]
    if pa.types.is_date32(kept) or pa.types.is_timestamp(kept):
        # Four digits of the year, a dash, and no BC behind it all.
        last = data[np.maximum(starts + lengths - 1, 0)]
        fifth = data[np.minimum(starts + 4, len(data) - 1)]
        digit = _DIGITS[data[starts]] & (fifth == ord("-")) & (last != ord("C"))
        return digit
    if pa.types.is_decimal(kept):
        digit = _DIGITS[data[starts + (data[starts] == ord("-"))]]
        return digit
    if pa.types.is_string(kept):
        return _is_utf8(data, starts, lengths)
    return np.ones(len(starts), np.bool_)


def _is_utf8(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether each text is UTF-8: a database of SQL_ASCII has any bytes."""
    fits = np.ones(len(starts), np.bool_)
    beyond = np.concatenate([[0], np.cumsum(data >= 0x80)])
    for row in np.flatnonzero(beyond[starts + lengths] > beyond[starts]).tolist():
        try:
            data[starts[row] : starts[row] + lengths[row]].tobytes().decode()
        except UnicodeDecodeError:
            fits[row] = False
    return fits
