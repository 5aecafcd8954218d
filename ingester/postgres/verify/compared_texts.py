"""Both sides of a comparison as the same texts.

    copy    Arrow column ──▶ copy_texts ──▶ Texts
    source  column ──▶ expression ──▶ COPY … TO STDOUT ──▶ parse_block ──▶ Texts of each column

``copy_texts`` converts Arrow values to text, independently of ``types``, which converts the other
way: a fault in reading a text is not repeated and hidden here. The form is COPY's text format under
the settings of ``connection``. Floating point numbers are the hexadecimal digits of their bits
(``float8send``), bytes are hexadecimal digits (``encode``). The source's values are never cast to
text: ``char(5)`` would lose its blanks. Values that the copy keeps as null by policy are null here,
recognized by their text. The two sides agree in ``tests/postgres/test_texts_of_copies.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingester.postgres.verify.row_hashes import Texts

ESCAPES = (
    ("\\", "\\\\"),  # first, as the others write it
    ("\b", "\\b"),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\v", "\\v"),
    ("\f", "\\f"),
    ("\r", "\\r"),
)
"""The characters that ``COPY`` escapes."""
_ESCAPED = np.zeros(256, np.bool_)
_ESCAPED[[ord(character) for character, _ in ESCAPES]] = True
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "<u2")
"""The two hexadecimal digits of each byte."""
_PAD = 8
"""Bytes after the last text, as :class:`Texts` requires."""
_FLOAT4, _FLOAT8, _BYTEA = 700, 701, 17
_TAB, _LINE = 9, 10
_NULL = np.frombuffer(b"\\N", "<u2")[0]
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789")] = True
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_LETTERS = {b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


class NoText(ValueError):
    """A column whose type is not made from any of PostgreSQL's."""


def copy_texts(column: pa.Array) -> Texts:
    """The texts of a column.

    Raises:
        NoText: unexpected type.
    """
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _binary(column)
    if pa.types.is_floating(kind):
        return _floating(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _of_strings(column, escaped=True)
    return _of_strings(_written(column), escaped=False)


def _written(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "t", "f")
    if pa.types.is_integer(kind) or pa.types.is_date32(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        local = column.cast(pa.timestamp("us"))
        text = pc.utf8_rtrim(pc.utf8_rtrim(local.cast(pa.string()), "0"), ".")
        return text if kind.tz is None else pc.binary_join_element_wise(text, "+00", "")
    if pa.types.is_decimal128(kind):
        return _decimal(column)
    raise NoText(f"no PostgreSQL type becomes {kind}")


def _decimal(column: pa.Array) -> pa.Array:
    """Fixed-point digits; Arrow's own text has exponents."""
    digits, scale = column.type.precision, column.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(digits, 0), len(column), column.buffers(), offset=column.offset
    ).cast(pa.string())
    if scale <= 0:
        zeros = pc.if_else(pc.equal(whole, "0"), "", "0" * -scale)
        return pc.binary_join_element_wise(whole, zeros, "")
    minus = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    before, behind = (
        pc.utf8_slice_codeunits(padded, 0, -scale),
        pc.utf8_slice_codeunits(padded, -scale),
    )
    point = pc.binary_join_element_wise(before, behind, ".")
    return pc.binary_join_element_wise(minus, point, "")


def _floating(column: pa.Array) -> Texts:
    """Bits as hexadecimal digits, with a single NaN, since PostgreSQL's NaNs are equal."""
    width = column.type.bit_width // 8
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    bits = np.ascontiguousarray(values.astype(f">f{width}")).view(np.uint8)
    rows = len(column)
    return Texts(
        np.concatenate([_HEX[bits].view(np.uint8), np.zeros(_PAD, np.uint8)]),
        np.arange(rows, dtype=np.int64) * 2 * width,
        np.full(rows, 2 * width, np.int64),
        _nulls(column),
    )


def _binary(column: pa.Array) -> Texts:
    data, offsets = _bytes(column)
    digits = np.concatenate([_HEX[data].view(np.uint8), np.zeros(_PAD, np.uint8)])
    return Texts(digits, offsets[:-1] * 2, np.diff(offsets) * 2, _nulls(column))


def _of_strings(column: pa.Array, *, escaped: bool) -> Texts:
    data, offsets = _bytes(column)
    if escaped and _ESCAPED[data].any():
        for character, written in ESCAPES:
            column = pc.replace_substring(column, character, written)
        data, offsets = _bytes(column)
    padded = np.concatenate([data, np.zeros(_PAD, np.uint8)])
    return Texts(padded, offsets[:-1], np.diff(offsets), _nulls(column))


def _bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All bytes of a column of strings, and the offsets of its values."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    width = np.int64 if large else np.int32
    places = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    first, end = int(places[0]), int(places[-1])
    found = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return found[first:end], places.astype(np.int64) - first


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


Form = Literal["text", "bits", "hex"]
"""The text of the type's output function; or the bits of a floating point number, or bytes, as
hexadecimal digits."""


class AskedColumn(NamedTuple):
    """A column of the source, and how the copy keeps it."""

    name: str
    base_oid: int
    kept: pa.DataType | None
    """The type of the copy's column; None if it has none."""
    nulls: bool
    """Values that do not fit are null in the copy."""

    @property
    def form(self) -> Form:
        """The form of values on both sides."""
        if self.base_oid in (_FLOAT4, _FLOAT8):
            floating = self.kept is None or pa.types.is_floating(self.kept)
            return "bits" if floating else "text"
        if self.base_oid == _BYTEA and self.kept is not None and pa.types.is_binary(self.kept):
            return "hex"
        return "text"


def expression(column: AskedColumn, quoted: str) -> str:
    """The SQL expression to select; ``quoted`` is the column's quoted name."""
    if column.form == "bits":
        size = 4 if column.base_oid == _FLOAT4 else 8
        kind = f"pg_catalog.float{size}"
        one_nan = f"CASE WHEN {quoted} = 'NaN'::{kind} THEN 'NaN'::{kind} ELSE {quoted} END"
        return f"pg_catalog.encode(pg_catalog.float{size}send({one_nan}), 'hex')"
    return f"pg_catalog.encode({quoted}, 'hex')" if column.form == "hex" else quoted


def shown_value(column: AskedColumn, text: bytes) -> str:
    """The value for display, possibly cut."""
    if column.form == "hex":
        return "\\x" + text.decode()
    if column.form == "bits":
        bits = np.frombuffer(bytes.fromhex(text.decode()), f">f{len(text) // 2}")[0]
        return str(bits.astype(bits.dtype.newbyteorder("=")))
    return unescaped(text).decode(errors="replace")


def unescaped(text: bytes) -> bytes:
    """The value of a text with COPY's escapes."""
    if b"\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _LETTERS.get(found[1], found[1]), text)


def parse_block(block: bytes, columns: Sequence[AskedColumn]) -> list[Texts]:
    """Parse complete lines of COPY's text format into columns.

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
    column: AskedColumn,
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
    """Whether the copy's type can hold each value, judged by its first characters."""
    digit: npt.NDArray[np.bool_]
    if pa.types.is_date32(kept) or pa.types.is_timestamp(kept):
        # Four digits of the year, a dash, and no BC at the end.
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
    """Whether each text is UTF-8, which a SQL_ASCII database does not ensure."""
    fits = np.ones(len(starts), np.bool_)
    beyond = np.concatenate([[0], np.cumsum(data >= 0x80)])
    for row in np.flatnonzero(beyond[starts + lengths] > beyond[starts]).tolist():
        try:
            data[starts[row] : starts[row] + lengths[row]].tobytes().decode()
        except UnicodeDecodeError:
            fits[row] = False
    return fits
