"""A copy's columns as the texts in which PostgreSQL writes the same values.

Law of this file: pure, and apart from ``types``: it goes the other way, from Arrow to text, so that
a fault of reading a text is not made twice and missed. The form is that of the text format of
``COPY``, with its escapes, under the settings of ``connection``; floating point numbers are the
sixteen (or eight) hexadecimal digits of their bits, as ``float8send`` has them, and bytes are
hexadecimal digits, as ``encode`` has them: ``source_texts`` asks the source for the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingester.postgres.verify.row_hashes import Texts

ESCAPES = (
    ("\\", "\\\\"),  # the first of them: those below write it
    ("\b", "\\b"),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\v", "\\v"),
    ("\f", "\\f"),
    ("\r", "\\r"),
)
"""The characters that ``COPY`` writes in another way."""
_ESCAPED = np.zeros(256, np.bool_)
_ESCAPED[[ord(character) for character, _ in ESCAPES]] = True
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "<u2")
"""The two digits of each byte."""
_PAD = 8
"""Bytes behind the last text, as :class:`Texts` wants them."""


class NoText(ValueError):
    """A column of a type that no column of PostgreSQL becomes."""


def copy_texts(column: pa.Array) -> Texts:
    """The texts of a column.

    Raises:
        NoText: its type is not one of those that are made of PostgreSQL's.
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
    raise NoText(f"no column of PostgreSQL becomes {kind}")


def _decimal(column: pa.Array) -> pa.Array:
    """Digits with as many behind the point as the type has; Arrow's own text has exponents."""
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
    """The bits as hexadecimal digits; one NaN for all, as PostgreSQL has them equal."""
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
    """All bytes of a column of strings, and where each begins, with the end of the last."""
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
