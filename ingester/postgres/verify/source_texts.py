"""What the source is asked for, so that its texts are those that ``copy_texts`` makes of a copy.

    column ──▶ expression ──▶ COPY … TO STDOUT ──▶ blocks of bytes ──▶ Texts of each column

Law of this file: pure. A source's column is written by the output function of its type, as in the
log, and never cast to text: ``char(5)`` would lose its blanks. What a copy keeps as null by the
policy of its column is null here too, by a look at the text and not by reading its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingester.postgres.verify.row_hashes import Texts

_FLOAT4, _FLOAT8, _BYTEA = 700, 701, 17
_TAB, _LINE = 9, 10
_NULL = np.frombuffer(b"\\N", "<u2")[0]
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789")] = True


class Asked(NamedTuple):
    """A column of the source, and how the copy keeps it."""

    name: str
    base_oid: int
    kept: pa.DataType | None
    """The type of the copy's column; None where the copy has no such column."""
    nulls: bool
    """Values without a counterpart are null in the copy."""

    @property
    def as_bits(self) -> bool:
        """Whether the source writes the bits of a floating point number."""
        floating = self.kept is None or pa.types.is_floating(self.kept)
        return self.base_oid in (_FLOAT4, _FLOAT8) and floating


def expression(column: Asked, quoted: str) -> str:
    """The SQL expression that is asked for; ``quoted`` is the column's name in quotes."""
    if column.as_bits:
        size = 4 if column.base_oid == _FLOAT4 else 8
        kind = f"pg_catalog.float{size}"
        one_nan = f"CASE WHEN {quoted} = 'NaN'::{kind} THEN 'NaN'::{kind} ELSE {quoted} END"
        return f"pg_catalog.encode(pg_catalog.float{size}send({one_nan}), 'hex')"
    if column.base_oid == _BYTEA and column.kept is not None and pa.types.is_binary(column.kept):
        return f"pg_catalog.encode({quoted}, 'hex')"
    return quoted


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
    return np.ones(len(starts), np.bool_)
