"""JSON lines as record batches, with inferred types that hold every value.

    blocks of whole lines ──▶ types so far ──▶ all blocks again ──▶ parsed ──▶ converted

A file is scanned completely before its first row is returned; for a pipe the first block decides
(``tests/cli/test_text_inputs.py``). Columns with a type from the table or by name keep it.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from persist.parquet.stats import has_floats

from ..exits import CommandFailed
from .json_objects import MAX_DEPTH, NotObjects, as_lines, deep_line, is_spread
from .json_types import JsonTypes, TypeClash, doubles
from .json_values import (
    MEMBER,
    Types,
    apart,
    cell_column,
    has_infinite,
    may_round,
    parsed,
    split_off,
    wire_type,
)
from .source import BLOCK_BYTES, Passes, TextOptions, TextSource, check_utf8
from .text_values import Unreadable, finished, is_text

_SHOWN_CHARACTERS = 300
MAX_LINE_BYTES = 64 * 1024**2  # the daemon's default for a whole batch


class JsonLines:
    """One input of JSON lines. ``schema`` is known from the start; ``rows`` is None for a pipe."""

    def __init__(
        self, source: TextSource, options: TextOptions, table_schema: pa.Schema | None
    ) -> None:
        """Infer the types: from the whole file, or from the first block of a pipe.

        Raises:
            CommandFailed: The input cannot be read.
        """
        self._source = source
        table = {} if table_schema is None else {f.name: f.type for f in table_schema}
        self._known: Types = table | options.column_types
        self._required = {f.name for f in table_schema or () if not f.nullable}
        self._cells = {name for name, kind in self._known.items() if apart(kind)}
        self._looked_at = 0
        self._found = JsonTypes({n: k for n, k in self._known.items() if n not in self._cells})
        self._seen: set[str] = set()
        self.rows: int | None = None
        self._blocks = self._look()
        self._types = self._decided()
        self.schema = pa.schema(list(self._types.items()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, one batch per block.

        Raises:
            CommandFailed: A later row of a pipe does not fit the types.
        """
        rows_before = 0
        for text in self._blocks:
            batch = self._batch(text, rows_before)
            rows_before += batch.num_rows
            yield batch

    # ---------------------------------------------------------------------------------- the types

    def _look(self) -> Iterator[bytes]:
        """Infer the types. Returns the blocks for the second pass."""
        passes = Passes(self._read(), self._read, self._source.comes_once)
        for text in passes.first(len):
            self._look_at(text)
        if not self._source.comes_once:
            self.rows = self._looked_at
        if self._found.unsure:
            for text in passes.again():
                self._found.count(split_off(text, self._cells)[0])
        return passes.second()

    def _look_at(self, text: bytes) -> None:
        rows_before = self._looked_at
        self._split_off_rounded(text)
        try:
            rest, cells = split_off(text, self._cells)
            table = self._found.add(rest)
        except TypeClash as exc:
            raise self._clash(exc.name, str(exc), rows_before) from exc
        except Unreadable as exc:
            raise CommandFailed(
                f"{self._source.shown}: row {rows_before + exc.index + 1:,}: {exc}"
            ) from exc
        except (pa.ArrowException, msgspec.DecodeError, ValueError) as exc:
            if not self._reads_by_cell(str(exc)):
                self._check_cells(text, rows_before)
                raise self._malformed(exc, rows_before) from exc
            self._look_at(text)
            return
        for name in table.column_names:
            if table.column(name).null_count < table.num_rows:
                self._seen.add(name)
                if name in self._known:
                    self._finished(name, table.column(name), self._known[name], rows_before)
        for name, column in cells.items():
            if any(column):
                self._seen.add(name)
                self._cell_column(name, column, rows_before)
        self._looked_at += table.num_rows

    def _split_off_rounded(self, text: bytes) -> None:
        """Read given columns of floats cell by cell, if Arrow's reader may round an integer."""
        whole = {name: kind for name, kind in self._known.items() if name not in self._cells}
        for name in may_round(text, whole):
            self._cells.add(name)
            self._found.known.pop(name, None)

    def _decided(self) -> Types:
        found = self._found.types()
        for name, kind in found.items():
            if self._found.found[name] != kind and is_text(kind):
                self._cells.add(name)  # numbers that only text can hold
        self._known |= {name: found[name] for name in self._cells if name in found}
        types = {**{n: k for n, k in self._known.items() if n not in found}, **found}
        if self._source.comes_once:
            return types
        needed = self._seen | self._required | set(found)
        if not needed and self._looked_at:  # rows without values
            needed = set(list(types)[:1])
        decided = {name: kind for name, kind in types.items() if name in needed}
        if not decided and self._looked_at:
            raise CommandFailed(f"cannot read {self._source.shown}: its objects have no fields")
        return decided

    def _reads_by_cell(self, message: str) -> bool:
        """Whether to read a column cell by cell: text for another type, or NaN as text."""
        found = re.search(r"Column\(/([^/)]+)", message)
        name = found[1] if found else ""
        kind = self._known.get(name, pa.null())
        if name in self._cells or not (is_text(kind) or has_floats(kind)):
            return False
        self._cells.add(name)
        self._found.known.pop(name, None)
        return True

    # ----------------------------------------------------------------------------------- the rows

    def _batch(self, text: bytes, rows_before: int) -> pa.RecordBatch:
        self._split_off_rounded(text)
        try:
            rest, cells = split_off(text, self._cells)
            fields = {n: wire_type(k) for n, k in self._types.items() if n not in self._cells}
            table = parsed(rest, fields)
        except Unreadable as exc:
            raise CommandFailed(
                f"{self._source.shown}: row {rows_before + exc.index + 1:,}: {exc}"
            ) from exc
        except (pa.ArrowException, msgspec.DecodeError, ValueError) as exc:
            if self._reads_by_cell(str(exc)):
                return self._batch(text, rows_before)
            self._check_cells(text, rows_before)
            raise self._malformed(exc, rows_before) from exc
        if infinite := {f for f in fields if any(map(has_infinite, table.column(f).chunks))}:
            self._cells |= infinite
            return self._batch(text, rows_before)
        for name in table.column_names:
            column = table.column(name)
            if name not in fields and name != MEMBER and column.null_count < len(column):
                raise self._new_column(name, column, rows_before)
            if name in fields and column.type != fields[name]:
                raise self._clash(name, f"column {name!r}: {column.type}", rows_before)
        if self._source.comes_once and rows_before:
            self._check_numbers(rest, rows_before)
        columns = []
        for name, kind in self._types.items():
            if name in cells:
                columns.append(self._cell_column(name, cells[name], rows_before))
            elif name in table.column_names:
                columns.append(self._finished(name, table.column(name), kind, rows_before))
            else:
                columns.append(pa.nulls(table.num_rows, kind))
        return pa.record_batch(columns, schema=self.schema)

    def _check_numbers(self, text: bytes, before: int) -> None:
        """Check that float64, inferred from the first rows, holds these numbers too."""
        for column, kind in self._types.items():
            if column not in self._known:
                for name in self._found.rounded(text, doubles(column, kind)):
                    raise CommandFailed(
                        f"{self._source.shown}: after row {before:,}, {name!r} has a number that"
                        " float64, inferred from the first rows of the pipe, cannot hold; use"
                        f" --column-types {column}=TYPE, or a file, which is scanned completely"
                    )

    def _finished(self, name: str, column: Any, kind: pa.DataType, before: int) -> pa.Array:
        try:
            return finished(column.combine_chunks(), kind)
        except Unreadable as exc:
            raise self._unreadable(name, exc, before) from exc

    def _cell_column(self, name: str, cells: list[bytes | None], before: int) -> pa.Array:
        try:
            return cell_column(cells, self._known[name])
        except Unreadable as exc:
            raise self._unreadable(name, exc, before) from exc

    # ----------------------------------------------------------------------------------- failures

    def _check_cells(self, text: bytes, rows_before: int) -> None:
        """Refuse the first cell that is not of its given type, as Arrow names no row or column."""
        with contextlib.suppress(msgspec.DecodeError, Unreadable):
            _, cells = split_off(text, set(self._known))
            for name, column in cells.items():
                self._cell_column(name, column, rows_before)

    def _unreadable(self, name: str, exc: Unreadable, before: int) -> CommandFailed:
        row = before + exc.index + 1
        hint = "" if name in self._known else f"; --column-types {name}=string keeps the text"
        return CommandFailed(f"{self._source.shown}: row {row:,}, column {name!r}: {exc}{hint}")

    def _clash(self, name: str, message: str, before: int) -> CommandFailed:
        column = name.partition(".")[0]
        if column in self._known:
            return CommandFailed(
                f"{self._source.shown}: {message}, which is given, after row {before:,}"
            )
        return CommandFailed(
            f"{self._source.shown}: {message}, after row {before:,};"
            f" --column-types {column}=string keeps both as text"
        )

    def _malformed(self, exc: Exception, before: int) -> CommandFailed:
        message = str(exc)[:_SHOWN_CHARACTERS]
        if found := re.search(r" in row (\d+)$", message):
            message = f"row {before + int(found[1]) + 1:,}: {message[: found.start()]}"
        elif before and self._source.comes_once:
            message = (
                f"after row {before:,}: {message}; types are inferred from a pipe's first rows"
            )
        found = re.search(r"Column\(/([^/)]+)(/?)", message)
        if found and "specified twice" in message and not found[2]:
            message += "; an object may have a name once"
        elif found:
            message += f"; --column-types {found[1]}=string keeps all as text"
        return CommandFailed(f"cannot read {self._source.shown}: {message}")

    def _new_column(self, name: str, column: pa.ChunkedArray, before: int) -> CommandFailed:
        row = before + pc.index(column.is_valid(), True).as_py() + 1
        return CommandFailed(
            f"{self._source.shown}: row {row:,} is the first with column {name!r}, but columns are"
            f" inferred from the first rows of a pipe; use --column-types {name}=TYPE, or a file,"
            " which is scanned completely"
        )

    # -------------------------------------------------------------------------------------- bytes

    def _read(self) -> Iterator[bytes]:
        """Blocks of whole lines, one object per line."""
        name, lines = self._source.shown, 0
        chunks = self._source.chunks()
        head = next(chunks)
        chunks = chain([head], chunks)
        blocks = as_lines(chunks, BLOCK_BYTES) if is_spread(head) else self._whole(chunks)
        try:
            for text in blocks:
                check_utf8(name, text, rows_before=lines)
                if deep := deep_line(text):
                    raise CommandFailed(
                        f"cannot read {name}: line {lines + deep:,} is nested more than"
                        f" {MAX_DEPTH} levels deep"
                    )
                lines += text.count(b"\n")
                if text.strip():
                    yield text
        except NotObjects as exc:
            raise CommandFailed(f"cannot read {name}: {exc}") from exc

    def _whole(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes, divided at line ends."""
        pending = b""
        for chunk in chunks:
            cut = chunk.rfind(b"\n") + 1
            if cut:
                yield pending + chunk[:cut]
                pending = chunk[cut:]
            else:
                pending += chunk
            if len(pending) > MAX_LINE_BYTES:
                raise CommandFailed(f"cannot read {self._source.shown}: a line is over 64 MiB")
        if pending:
            yield pending
