"""JSON lines as record batches, with inferred types that hold every value.

    chunks ─▶ blocks of whole lines ─▶ objects ─▶ a list of values per column ─▶ ``text_rows``

An array, or objects over several lines, first become lines (``json_objects``).
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from ..exits import CommandFailed
from .json_decoding import as_written, objects_of
from .json_objects import NotObjects, as_lines, is_spread
from .json_types import JsonColumn
from .json_values import column_of
from .source import BLOCK_BYTES, TextOptions, TextSource, check_utf8
from .text_rows import Columns, TextRows
from .text_values import Unreadable, is_text

PIECE_BYTES = 256 * 1024
"""Text of which all objects fit into the processor's cache, which halves the time."""
MAX_LINE_BYTES = 64 * 1024**2  # the daemon's default for a whole batch


class JsonLines(TextRows[bytes]):
    """One input of JSON lines."""

    _blocks_to_infer = BLOCK_BYTES // PIECE_BYTES

    def __init__(
        self, source: TextSource, options: TextOptions, table_schema: pa.Schema | None
    ) -> None:
        self._required = {f.name for f in table_schema or () if not f.nullable}
        self._seen: set[str] = set()
        """Columns with a value."""
        self._texts = {name for name, kind in options.column_types.items() if is_text(kind)}
        """Columns of text, which also keep other values as they are written."""
        self._texts |= {f.name for f in table_schema or () if is_text(f.type)}
        self._any_rows = False
        super().__init__(source, options, table_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, one batch for several blocks, as the blocks are small."""
        pieces = super().batches()
        while several := list(islice(pieces, self._blocks_to_infer)):
            yield pa.concat_batches(several)

    def _nbytes(self, block: bytes) -> int:
        return len(block)

    def _columns(self, block: bytes, before: int) -> tuple[Columns, int]:
        try:
            rows = objects_of(block)
            columns: Columns = {}
            for name in dict.fromkeys(chain.from_iterable(rows)):
                column: list[Any] = [row.get(name) for row in rows]
                kinds = set(map(type, column)) - {type(None)}
                if kinds:
                    self._seen.add(name)
                if name in self._texts and not kinds <= {str}:
                    column = as_written(block, name, column)
                columns[name] = column
        except Unreadable as exc:
            row = before + exc.index + 1
            raise CommandFailed(f"cannot read {self._source.shown}: row {row:,}: {exc}") from exc
        self._any_rows = self._any_rows or bool(rows)
        return columns, len(rows)

    def _new_column(self) -> JsonColumn:
        return JsonColumn()

    def _array(self, column: list[Any], kind: pa.DataType) -> pa.Array:
        return column_of(column, kind)

    def _decided(self, found: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        for name, column in self._inferred.items():
            if isinstance(column, JsonColumn) and column.holds_numbers and is_text(found[name]):
                self._texts.add(name)
        types = {**{n: k for n, k in self._given.items() if n not in found}, **found}
        if self._is_pipe:
            return types
        needed = self._seen | self._required | set(found)
        if not needed and self._any_rows:  # rows without values
            needed = set(list(types)[:1])
        decided = {name: kind for name, kind in types.items() if name in needed}
        if not decided and self._any_rows:
            raise CommandFailed(f"cannot read {self._source.shown}: its objects have no fields")
        return decided

    def _read(self) -> Iterator[bytes]:
        """Blocks of whole lines, one object per line."""
        name, lines = self._source.shown, 0
        chunks = self._source.chunks()
        head = next(chunks)
        chunks = chain([head], chunks)
        blocks = as_lines(chunks, PIECE_BYTES) if is_spread(head) else self._whole(chunks)
        try:
            for text in blocks:
                check_utf8(name, text, rows_before=lines)
                lines += text.count(b"\n")
                if text.strip():
                    yield text
        except NotObjects as exc:
            raise CommandFailed(f"cannot read {name}: {exc}") from exc

    def _whole(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes, divided at line ends."""
        pending = b""
        for chunk in chunks:
            text, start = pending + chunk, 0
            while end := text.find(b"\n", start + PIECE_BYTES) + 1 or text.rfind(b"\n", start) + 1:
                yield text[start:end]
                start = end
            pending = text[start:]
            if len(pending) > MAX_LINE_BYTES:
                raise CommandFailed(f"cannot read {self._source.shown}: a line is over 64 MiB")
        if pending:
            yield pending
