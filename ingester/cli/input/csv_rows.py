"""CSV as record batches, with inferred types that hold every value.

    header ─▶ dialect ─▶ blocks of whole records ─▶ all columns as text ─▶ types ─▶ again, converted

A file is scanned completely before its first row is returned; for a pipe the first block decides
(``tests/cli/test_text_inputs.py``). Columns with a type from the table or by name keep it. An empty
field is null, and a quoted empty field is an empty text, as in PostgreSQL.
"""

import bisect
import copy
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv

from ..exits import CommandFailed
from .csv_records import BrokenRecord, dialect_of, whole_records
from .source import HEAD_BYTES, Passes, TextOptions, TextSource, check_utf8
from .text_types import TextColumn
from .text_values import Unreadable, converted, is_text, shortened
from .type_names import type_name


class CsvRows:
    """One CSV input. ``schema`` is known from the start; ``rows`` is None for a pipe."""

    def __init__(
        self, source: TextSource, options: TextOptions, table_schema: pa.Schema | None
    ) -> None:
        """Infer the types: from the whole file, or from the first block of a pipe.

        Raises:
            CommandFailed: The input cannot be read.
        """
        self._source = source
        self._options = options
        self.rows: int | None = None
        table = {} if table_schema is None else {f.name: f.type for f in table_schema}
        chunks = source.chunks()
        first = next(chunks, b"")
        self._dialect, self._skipped = dialect_of(source.shown, first[:HEAD_BYTES], options)
        told = table | options.column_types
        self._types = {n: told[n] for n in self._dialect.names if n in told}
        self._given = set(self._types)
        self._found = {
            name: TextColumn(decimal_comma=options.decimal_comma)
            for name in self._dialect.names
            if name not in self._given
        }
        self._blocks = self._look(self._texts(chain([first], chunks)))
        self.schema = pa.schema([(name, self._types[name]) for name in self._dialect.names])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, one batch per block.

        Raises:
            CommandFailed: A later row of a pipe does not fit the types.
        """
        rows_before = 0
        for texts in self._blocks:
            if self._source.comes_once and rows_before:
                self._check_same(texts, rows_before)
            columns = [
                self._converted(name, column, rows_before)
                for name, column in zip(self._dialect.names, texts.columns, strict=True)
            ]
            rows_before += texts.num_rows
            yield pa.record_batch(columns, schema=self.schema)

    def _look(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Infer the types. Returns the blocks for the second pass."""
        once, found, rows = self._source.comes_once, self._found, 0
        passes = Passes(blocks, lambda: self._texts(self._source.chunks()), once)
        for texts in passes.first(lambda batch: int(batch.nbytes)):
            for name, column in zip(self._dialect.names, texts.columns, strict=True):
                if name in found:
                    found[name].add(column)
                else:
                    # The type is given: check every value before a row is sent.
                    self._converted(name, column, rows)
            rows += texts.num_rows
        self._types |= {name: column.type() for name, column in found.items()}
        self.rows = None if once else rows
        return passes.second()

    def _check_same(self, texts: pa.RecordBatch, before: int) -> None:
        """Check that the types of the first rows hold these texts without loss."""
        for name, column in zip(self._dialect.names, texts.columns, strict=True):
            decided = self._types[name]
            if name in self._given or is_text(decided):
                continue
            earlier, known = copy.deepcopy(self._found[name]), self._found[name]
            known.add(column)
            if known.type() == decided:
                continue
            index = _first_other(earlier, column, decided)
            raise CommandFailed(
                f"{self._source.shown}: row {before + index + 1:,}, column {name!r}:"
                f" {shortened(column[index].as_py())} is not {decided}, which was inferred from the"
                f" first rows of the pipe; use --column-types {name}={type_name(known.type())}, or"
                " a file, which is scanned completely"
            )

    def _texts(self, chunks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
        """All columns as text, block by block."""
        dialect, rows, lines = self._dialect, 0, 1
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

    def _converted(self, name: str, texts: pa.Array, before: int) -> pa.Array:
        try:
            return converted(texts, self._types[name], self._options.decimal_comma)
        except Unreadable as exc:
            row, hint = before + exc.index + 1, ""
            if name not in self._given:
                hint = f"; --column-types {name}=string keeps the text"
            elif not self._options.decimal_comma and re.match(r"'-?\d+,\d+'", str(exc)):
                hint = "; use --decimal-comma for numbers with a comma"
            raise CommandFailed(
                f"{self._source.shown}: row {row:,}, column {name!r}: {exc}{hint}"
            ) from exc


def _first_other(earlier: TextColumn, texts: pa.Array, decided: pa.DataType) -> int:
    """The index of the first text that changes the inferred type. One of them does."""

    def changes(place: int) -> bool:
        tried = copy.deepcopy(earlier)
        tried.add(texts.slice(0, place + 1))
        return bool(tried.type() != decided)

    return bisect.bisect_left(range(len(texts) - 1), True, key=changes)
