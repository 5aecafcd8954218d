"""CSV as record batches, with inferred types that hold every value.

    header ─▶ delimiter ─▶ all columns as text, block by block ─▶ types ─▶ again ─▶ converted

A file is scanned completely before its first row is returned; for a pipe the first block decides
(``tests/cli/test_text_inputs.py``). Columns with a type from the table or by name keep it. An empty
field is null, and a quoted empty field is an empty text, as in PostgreSQL.
"""

import bisect
import contextlib
import copy
import csv
import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from ..exits import CommandFailed
from .source import BLOCK_BYTES, OTHERS, Passes, Rewound, TextOptions, TextSource, head_of
from .text_types import TextColumn
from .text_values import Unreadable, converted, is_text, shortened
from .type_names import type_name

DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_ROWS = 100


class Dialect(NamedTuple):
    """How a file is split into columns."""

    delimiter: str
    skipped_lines: int
    names: list[str]


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
        file = source.open()
        head = head_of(source, file)
        self._dialect = dialect_of(source.shown, head, options.delimiter)
        told = table | options.column_types
        self._types = {n: told[n] for n in self._dialect.names if n in told}
        self._given = set(self._types)
        self._found = {
            name: TextColumn(decimal_comma=options.decimal_comma)
            for name in self._dialect.names
            if name not in self._given
        }
        texts = self._texts(pa.PythonFile(io.BufferedReader(Rewound(head, file)), mode="r"))
        self._blocks = self._look(texts)
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
        passes = Passes(blocks, lambda: self._texts(self._source.open()), once)
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

    def _texts(self, file: Any) -> Iterator[pa.RecordBatch]:
        """All columns as text, block by block."""
        dialect = self._dialect
        names = dict.fromkeys(dialect.names, pa.string())
        rows = 0
        # A pipe is not closed: closing waits for the thread that reads ahead, and so for input.
        with contextlib.nullcontext() if self._source.comes_once else file:
            try:
                reader = pyarrow.csv.open_csv(
                    file,
                    pyarrow.csv.ReadOptions(
                        block_size=BLOCK_BYTES, skip_rows=dialect.skipped_lines
                    ),
                    # Otherwise a quoted line end at the end of a block splits a row.
                    pyarrow.csv.ParseOptions(
                        delimiter=dialect.delimiter,
                        newlines_in_values=True,
                        # In a single column, an empty line is a row with null.
                        ignore_empty_lines=len(names) > 1,
                    ),
                    pyarrow.csv.ConvertOptions(
                        column_types=names,
                        null_values=["", *self._options.null_words],
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                    ),
                )
                for batch in reader:
                    rows += batch.num_rows
                    yield batch
            except pa.ArrowException as exc:
                where = f"after row {rows:,}: " if rows else ""
                hint = f"; {OTHERS}" if "invalid UTF8" in str(exc) else ""
                raise CommandFailed(
                    f"cannot read {self._source.shown}: {where}{exc}{hint}"
                ) from exc

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


def dialect_of(name: str, head: bytes, delimiter: str | None) -> Dialect:
    """The delimiter and the columns, from the first bytes.

    Raises:
        CommandFailed: There is no header, or the delimiter is ambiguous.
    """
    text = head.decode(errors="ignore")
    skipped = 0
    if found := re.match(r"sep=(.)\r?\n", text):  # as in Excel
        delimiter, skipped, text = delimiter or found[1], 1, text[found.end() :]
    if not text.strip():
        raise CommandFailed(f"cannot read {name}: it is empty, but a CSV file needs a header")
    if delimiter is None:
        delimiter = _told(name, text)
    try:
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as exc:
        raise CommandFailed(f"cannot read {name}: its header: {exc}") from exc
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise CommandFailed(f"cannot read {name}: its header has {twice[0]!r} more than once")
    return Dialect(delimiter, skipped, names)


def _told(name: str, text: str) -> str:
    """The delimiter that gives all first rows as many columns as the header."""
    lines = text.splitlines(keepends=True)
    sample = "".join(lines[: max(1, len(lines) - 1)][:_SAMPLE_ROWS])
    widths = {one: _widths(sample, one) for one in DELIMITERS}
    even = [one for one, rows in widths.items() if rows[0] > 1 and len(set(rows)) == 1]
    if len(even) == 1:
        return even[0]
    if not even and max(rows[0] for rows in widths.values()) == 1:
        return ","  # one column
    several = even or [one for one, rows in widths.items() if rows[0] > 1]
    if len(several) == 1:
        return several[0]  # the reader reports rows of another width
    options = " or ".join(repr(one) for one in several)
    raise CommandFailed(f"cannot read {name}: the delimiter may be {options}: give --delimiter")


def _widths(sample: str, delimiter: str) -> list[int]:
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a long text that the sample cut off
        rows += csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    # The last row may have a quoted text that was cut off.
    found = [len(row) for row in (rows[:-1] if len(rows) > 2 else rows) if row]
    return found or [1]
