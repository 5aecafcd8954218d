"""What CSV and JSON lines share: a pass over the input to infer types, and one to read.

    blocks ─▶ columns ─▶ types so far ─▶ blocks again ─▶ columns ─▶ converted, or refused by row

A file is scanned completely before its first row is returned; for a pipe the first block decides,
and a later value that would have led to another type is refused. Columns with a type from the table
or by name keep it, and their values are checked in the first pass
(``tests/cli/test_text_inputs.py``).
"""

import abc
import bisect
import copy
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ..exits import CommandFailed
from .json_decoding import written
from .json_types import JsonColumn
from .source import TextOptions, TextSource
from .text_types import TextColumn
from .text_values import Unreadable, is_text, shortened
from .type_names import type_name

Block = TypeVar("Block")
Columns = dict[str, Any]
"""Values by column: Arrow's texts, or lists of JSON values."""
HELD_BYTES = 32 * 1024**2
"""Maximum text kept in memory between two passes; a larger file is read twice."""


class TextRows(abc.ABC, Generic[Block]):
    """One input. ``schema`` is known from the start; ``rows`` is None for a pipe."""

    _blocks_to_infer = 1
    """How many blocks of a pipe decide on the types."""

    def __init__(
        self, source: TextSource, options: TextOptions, table_schema: pa.Schema | None
    ) -> None:
        """Infer the types: from the whole file, or from the first block of a pipe.

        Raises:
            CommandFailed: The input cannot be read.
        """
        self._source = source
        self._options = options
        self._is_pipe = source.comes_once
        table = {} if table_schema is None else {f.name: f.type for f in table_schema}
        self._given: dict[str, pa.DataType] = table | options.column_types
        self._inferred: dict[str, TextColumn | JsonColumn] = {}
        self._blocks = self._look()
        found = {name: column.type() for name, column in self._inferred.items()}
        self._types = self._decided(found)
        self.schema = pa.schema(list(self._types.items()))

    @abc.abstractmethod
    def _read(self) -> Iterator[Block]:
        """The input from its beginning, in blocks of whole rows."""

    @abc.abstractmethod
    def _nbytes(self, block: Block) -> int: ...

    @abc.abstractmethod
    def _columns(self, block: Block, before: int) -> tuple[Columns, int]:
        """A block's columns and its number of rows; ``before`` rows precede it."""

    @abc.abstractmethod
    def _new_column(self) -> TextColumn | JsonColumn:
        """An object that infers a column's type."""

    @abc.abstractmethod
    def _array(self, column: Any, kind: pa.DataType) -> pa.Array:
        """The column converted. Raises Unreadable."""

    @abc.abstractmethod
    def _decided(self, found: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """The columns and their types, from the inferred ones and the given ones."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, one batch per block.

        Raises:
            CommandFailed: A later row of a pipe does not fit the types.
        """
        before = 0
        for block in self._blocks:
            columns, rows = block if isinstance(block, tuple) else self._columns(block, before)
            if self._is_pipe and before:
                self._check_same(columns, before)
            arrays = [
                self._converted(name, columns[name], kind, before)
                if name in columns
                else pa.nulls(rows, kind)
                for name, kind in self._types.items()
            ]
            before += rows
            yield pa.record_batch(arrays, schema=self.schema)

    def _look(self) -> Iterator[Block | tuple[Columns, int]]:
        """Infer the types. Returns the blocks again, as columns if all types are given."""
        blocks = self._read()
        held: list[Block | tuple[Columns, int]] = []
        nbytes = before = 0
        for block in islice(blocks, self._blocks_to_infer) if self._is_pipe else blocks:
            columns, rows = self._columns(block, before)
            for name, column in columns.items():
                if name in self._given:
                    columns[name] = self._converted(name, column, self._given[name], before)
                else:
                    self._infer(name, column, before)
            before += rows
            nbytes += self._nbytes(block)
            if self._is_pipe or nbytes <= HELD_BYTES:
                held.append(block if self._inferred else (columns, rows))
            else:
                held.clear()
        self.rows = None if self._is_pipe else before
        if self._is_pipe:
            return chain(held, blocks)
        return iter(held) if nbytes <= HELD_BYTES else self._read()

    def _infer(self, name: str, column: Any, before: int) -> None:
        try:
            self._inferred.setdefault(name, self._new_column()).add(column)
        except Unreadable as exc:
            hint = f"; --column-types {name}=string keeps all as text"
            raise self._refused(name, exc, before, hint) from exc

    def _check_same(self, columns: Columns, before: int) -> None:
        """Check that the types of a pipe's first rows hold these values without loss."""
        for name, column in columns.items():
            decided = self._types.get(name, pa.null())
            if name in self._given or is_text(decided):
                continue
            earlier = self._inferred.get(name) or self._new_column()
            self._inferred[name] = copy.deepcopy(earlier)
            self._infer(name, column, before)
            if (kind := self._inferred[name].type()) == decided:
                continue
            index = _first_other(earlier, column, decided)
            value = column[index].as_py() if isinstance(column, pa.Array) else column[index]
            value = shortened(value if isinstance(value, str) else written(value))
            given = f"{name}={type_name(kind)}"
            if name not in self._types:
                told = f"{value} is in a column that the first rows of the pipe do not have"
                helps = f"use --column-types {given}, or a file"
            else:
                # The first rows are in the table, which has their types.
                told = (
                    f"{value} is not {decided}, which was inferred from the first rows of the pipe"
                )
                helps = f"write to a new table, with --column-types {given} or from a file"
            raise CommandFailed(
                f"{self._source.shown}: row {before + index + 1:,}, column {name!r}: {told};"
                f" {helps}, which is scanned completely"
            )

    def _converted(self, name: str, column: Any, kind: pa.DataType, before: int) -> pa.Array:
        if isinstance(column, pa.Array) and column.type == kind:
            return column  # by the first pass
        try:
            return self._array(column, kind)
        except Unreadable as exc:
            hint = ""
            if name not in self._given:
                hint = f"; --column-types {name}=string keeps the text"
            elif not self._options.decimal_comma and re.match(r"'-?\d+,\d+'", str(exc)):
                hint = "; use --decimal-comma for numbers with a comma"
            raise self._refused(name, exc, before, hint) from exc

    def _refused(self, name: str, exc: Unreadable, before: int, hint: str = "") -> CommandFailed:
        row = f"row {before + exc.index + 1:,}"
        return CommandFailed(f"{self._source.shown}: {row}, column {name!r}: {exc}{hint}")


def _first_other(earlier: TextColumn | JsonColumn, column: Any, decided: pa.DataType) -> int:
    """The index of the first value that changes the inferred type. One of them does."""

    def changes(place: int) -> bool:
        tried = copy.deepcopy(earlier)
        tried.add(column[: place + 1])
        return bool(tried.type() != decided)

    return bisect.bisect_left(range(len(column) - 1), True, key=changes)
