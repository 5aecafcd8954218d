"""Blocks of ``COPY … (FORMAT csv)`` as record batches of a table here.

    bytes ──pyarrow.csv──▶ a column of texts each ──types──▶ record batch, by a Shape

Law of this file: pure. An unquoted empty field is NULL and a quoted one is the empty text; nothing
else of a text is looked at before its type is known.

Source: PostgreSQL's documentation, "COPY", CSV format.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv

from ingester.postgres.collector import Shape
from ingester.postgres.types import ValueNotKept, arrow_values

BATCH_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


def rows_at_most(shape: Shape) -> int:
    """The rows of a block whose batch has about :data:`BATCH_BYTES`, however short their texts.

    Nulls take no byte of a block but one, and up to 16 in a batch.
    """
    return max(1, BATCH_BYTES // sum(_width(column.type.arrow) for column in shape.columns))


def read_block(block: bytes, shape: Shape) -> pa.RecordBatch:
    """The rows of a block, which has the shape's columns in their order.

    Raises:
        ValueNotKept: with the table's name here, the row's key and the column.
    """
    texts = read_texts(block, len(shape.columns))
    return to_batch(shape, texts, [None] * len(texts))


def to_batch(
    shape: Shape, texts: Sequence[pa.BinaryArray], values: Sequence[pa.Array | None]
) -> pa.RecordBatch:
    """The rows of texts; where a column's values are there already, its texts do not count.

    Raises:
        ValueNotKept: with the table's name here, the row's key and the column.
    """
    arrays = []
    for column, found, array in zip(shape.columns, texts, values, strict=True):
        if array is None:
            try:
                array = arrow_values(column.type, found, column.source)
            except ValueNotKept as exc:
                raise exc.of(shape.target, key_text(shape, texts, exc.row_index)) from exc
        if array.null_count and column.source in shape.key:
            row = array.is_null().index(True).as_py()
            raise _null_key(shape, texts, column.source, row)
        arrays.append(array)
    return pa.record_batch(arrays, names=[column.name for column in shape.columns])


def read_texts(block: bytes, columns: int) -> list[pa.BinaryArray]:
    """The bytes of each column's texts; null for NULL."""
    names = [str(number) for number in range(columns)]
    # A reader takes a mark of UTF-8 off at the beginning; there the first value may have one.
    source = pa.BufferReader(_BOM + block if block.startswith(_BOM) else block)
    table = pa.csv.read_csv(
        source,
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=len(block) + len(_BOM), column_names=names
        ),
        # An empty line is a row of one column, with NULL in it.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,  # By the types, which know whose value it is.
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [_one(column) for column in table.columns]


def _one(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _null_key(shape: Shape, texts: Sequence[pa.BinaryArray], column: str, row: int) -> ValueNotKept:
    at = [each.source for each in shape.columns].index(column)
    error = ValueNotKept(column, row, _shown(texts[at], row), "is in the key, which needs a value")
    return error.of(shape.target, key_text(shape, texts, row))


def key_text(shape: Shape, texts: Sequence[pa.BinaryArray], row: int) -> str:
    """A row's key, as ``id=7, day=2026-11-26``."""
    places = {column.source: at for at, column in enumerate(shape.columns)}
    return ", ".join(f"{name}={_shown(texts[places[name]], row)}" for name in shape.key)


def _shown(texts: pa.BinaryArray, row: int) -> str:
    value = texts[row].as_py()
    return "null" if value is None else value.decode(errors="backslashreplace")


def _width(kind: pa.DataType) -> int:
    """The bytes of a value in a batch; those of a text that is there are in its block too."""
    return 4 if pa.types.is_string(kind) or pa.types.is_binary(kind) else -(-kind.bit_width // 8)
