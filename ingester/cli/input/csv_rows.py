"""CSV as record batches, with inferred types that hold every value.

    header ─▶ dialect;  chunks ─▶ blocks of whole records ─▶ all columns as text ─▶ ``text_rows``

An empty field is null, and a quoted empty field is an empty text, as in PostgreSQL.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv

from ..exits import CommandFailed
from .csv_records import BrokenRecord, dialect_of, whole_records
from .json_values import of_cells
from .source import HEAD_BYTES, TextOptions, TextSource, check_utf8
from .text_rows import Columns, TextRows
from .text_types import TextColumn
from .text_values import converted, is_binary, shortened


class CsvRows(TextRows[pa.RecordBatch]):
    """One CSV input."""

    def __init__(
        self, source: TextSource, options: TextOptions, table_schema: pa.Schema | None
    ) -> None:
        chunks = source.chunks()
        first = next(chunks, b"")
        self._dialect, self._skipped = dialect_of(source.shown, first[:HEAD_BYTES], options)
        self._opened: Iterator[bytes] | None = chain([first], chunks)
        super().__init__(source, options, table_schema)

    def _nbytes(self, block: pa.RecordBatch) -> int:
        return int(block.nbytes)

    def _columns(self, block: pa.RecordBatch, before: int) -> tuple[Columns, int]:
        return dict(zip(self._dialect.names, block.columns, strict=True)), block.num_rows

    def _new_column(self) -> TextColumn:
        return TextColumn(decimal_comma=self._options.decimal_comma)

    def _array(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_nested(kind) or is_binary(kind):
            return of_cells(column.to_pylist(), kind)
        return converted(column, kind, decimal_comma=self._options.decimal_comma)

    def _decided(self, found: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        types = self._given | found
        return {name: types.get(name, pa.null()) for name in self._dialect.names}

    def _read(self) -> Iterator[pa.RecordBatch]:
        """All columns as text, block by block."""
        dialect, rows, lines = self._dialect, 0, 1
        chunks, self._opened = self._opened or self._source.chunks(), None
        chunks = chain([next(chunks)[self._skipped :]], chunks)
        header = True
        try:
            for text in whole_records(chunks, dialect):
                check_utf8(self._source.shown, text, rows_before=lines - 1)
                lines += text.count(b"\n")
                if header:
                    text, header = dialect.record.sub(b"", text, count=1), False
                if not text.strip(b"\r\n") and len(dialect.names) > 1:
                    continue
                if text:
                    batch = self._parsed(dialect.doubled(text), rows)
                    rows += batch.num_rows
                    yield batch
        except BrokenRecord as exc:
            if header:
                raise CommandFailed(f"cannot read {self._source.shown}: its header: {exc}") from exc
            name = (
                f", column {dialect.names[exc.column]!r}" if exc.column < len(dialect.names) else ""
            )
            raise CommandFailed(
                f"cannot read {self._source.shown}: row {rows + 1:,}{name}: {exc}"
            ) from exc

    def _parsed(self, text: bytes, rows_before: int) -> pa.RecordBatch:
        names, uneven = self._dialect.names, []

        def keep(row: Any) -> str:
            uneven.append(row)
            return "error"

        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(text),
                # One block. Without threads, the parser knows the number of a row.
                pyarrow.csv.ReadOptions(
                    block_size=len(text) + 1, column_names=names, use_threads=False
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=self._dialect.delimiter,
                    quote_char='"' if self._dialect.quotes else False,
                    newlines_in_values=True,
                    # In a single column, an empty line is a row with null.
                    ignore_empty_lines=len(names) > 1,
                    invalid_row_handler=keep,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=["", *self._options.null_words],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException as exc:
            if not uneven:
                raise CommandFailed(
                    f"cannot read {self._source.shown}: after row {rows_before:,}: {exc}"
                ) from exc
            row = uneven[0]
            raise CommandFailed(
                f"cannot read {self._source.shown}: row {rows_before + row.number:,}: Expected"
                f" {row.expected_columns} columns, got {row.actual_columns}: {shortened(row.text)}"
            ) from exc
        return pa.record_batch([c.combine_chunks() for c in table.columns], names)
