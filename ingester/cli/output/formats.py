"""Answers as table, CSV, JSON lines, Arrow IPC or Parquet, batch by batch.

Every format but ``table`` is written as it comes, in memory that does not grow with the answer.
A file appears whole, under its name, or not at all.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ingester.shown_text import escaped, escaped_json
from persist.parquet.stats import leaves_without_floats

from ..exits import USAGE, CommandFailed, half_written
from ..printing import print_table
from ..time_texts import time_texts
from .values import csv_cells, json_values, quoted_text

FORMATS = ("table", "csv", "jsonl", "arrow", "parquet")
BINARY = ("arrow", "parquet")
TABLE_ROWS = 1000
"""The most rows of a table, which is for people; a longer one is cut, and said to be."""
_BY_EXTENSION = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
}


class BatchSink(Protocol):
    """A writer of batches of one schema in some format."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next batch."""

    def finish(self) -> None:
        """Write what belongs at the end. Not called after a failure."""

    def abandon(self) -> None:
        """Write nothing more: a part of an answer must not look like a whole one."""


def format_of(given: str | None, output: Path | None) -> str:
    """The format: the one given, else by the file's extension, else ``table``.

    Raises:
        CommandFailed: no such format, or a binary one for a terminal, with exit code 2.
    """
    if given is not None and given not in FORMATS:
        raise CommandFailed(f"--format {given!r} is not one of {', '.join(FORMATS)}", USAGE)
    kind = given or (_BY_EXTENSION.get(output.suffix.lower()) if output else None) or "table"
    if output is not None and kind == "table" and given is None:
        raise CommandFailed(f"--output {output}: give --format ({', '.join(FORMATS[1:])})", USAGE)
    if output is not None and kind == "table":
        raise CommandFailed("--format table is for the terminal; --output takes another", USAGE)
    if output is None and kind in BINARY and sys.stdout.isatty():
        raise CommandFailed(f"{kind} is not for a terminal: use --output or redirect", USAGE)
    return kind


def open_sink(
    kind: str, target: Any, schema: pa.Schema, *, seekable: bool, terminal: bool = False
) -> BatchSink:
    """A sink of format ``kind`` (all but ``table``) that writes bytes to ``target``.

    Arrow is the file format where ``seekable``, else the stream format. For a ``terminal`` hidden
    characters are escaped, in CSV as no reader of CSV takes them back.
    """
    if kind == "jsonl":
        return JsonLinesSink(target, terminal)
    if kind == "csv":
        return CsvSink(target, schema, terminal)
    valve = _Valve(target)
    if kind == "parquet":
        # Of what comes nobody knows yet where a NaN is; and Spark looks for 0.0 in a dictionary
        # that has -0.0.
        plain = leaves_without_floats(schema)
        writer = pyarrow.parquet.ParquetWriter(
            valve, schema, compression="zstd", write_statistics=plain, use_dictionary=plain
        )
        return _ArrowSink(writer, valve)
    open_writer = pa.ipc.new_file if seekable else pa.ipc.new_stream
    return _ArrowSink(open_writer(valve, schema), valve)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Any]:
    """A file to write to that gets its name when the block ends well, and vanishes otherwise."""
    part = path.parent.absolute() / f".{path.name}.{secrets.token_hex(4)}.part"
    with half_written(part):
        # Private until it is whole, whatever others may read then.
        with open(part, "xb", opener=partial(os.open, mode=0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class _Valve:
    """A file that can be shut: pyarrow's writers write an ending even when they are dropped."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._written = 0
        self.shut = False
        self.closed = False  # pyarrow asks

    def write(self, data: Any) -> int:
        if not self.shut:
            self._target.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        if not self.shut:
            self._target.flush()


class _ArrowSink:
    """Arrow IPC and Parquet: pyarrow's own writers."""

    def __init__(self, writer: Any, valve: _Valve) -> None:
        self._writer = writer
        self._valve = valve

    def abandon(self) -> None:
        self._valve.shut = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class _LinesSink:
    """Lines of text, which have no ending."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def finish(self) -> None:
        self._target.flush()

    def abandon(self) -> None:
        pass


class CsvSink(_LinesSink):
    """CSV with a heading: texts in quotes, and nothing at all for null; see :mod:`.values`.

    An empty text is two quotes. Lists, structs and maps are JSON, binary is base64.
    """

    def __init__(self, target: Any, schema: pa.Schema, terminal: bool = False) -> None:
        super().__init__(target)
        self._names = list(schema.names)
        self._terminal = terminal
        names = map(escaped, self._names) if terminal else self._names
        self._target.write((",".join(map(quoted_text, names)) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        cells = map(csv_cells, self._names, batch.columns)
        if self._terminal:
            cells = map(_escaped_cells, cells)
        comma, empty, end = (pa.scalar(text, pa.large_string()) for text in (",", "", "\n"))
        lines = pc.binary_join_element_wise(
            *cells, comma, null_handling="replace", null_replacement=""
        )
        # An array of texts is one text, and where each begins.
        self._target.write(pc.binary_join_element_wise(lines, empty, end).buffers()[2])


class JsonLinesSink(_LinesSink):
    """One object per row, each value in the form that :mod:`.values` tells."""

    def __init__(self, target: Any, terminal: bool = False) -> None:
        super().__init__(target)
        self._terminal = terminal

    def write(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        columns = map(json_values, names, batch.columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        lines = msgspec.json.Encoder().encode_lines(rows)
        self._target.write(escaped_json(lines.decode()).encode() if self._terminal else lines)


class TableSink:
    """A table for people; ``more`` tells whether rows beyond ``limit_rows`` were left out."""

    def __init__(self, schema: pa.Schema, limit_rows: int) -> None:
        self._names = list(schema.names)
        self._limit = limit_rows
        self._rows: list[Sequence[object]] = []
        self.more = False

    def write(self, batch: pa.RecordBatch) -> None:
        room = self._limit - len(self._rows)
        self.more = self.more or batch.num_rows > room
        self._rows += zip(*map(table_cells, self._names, batch.slice(0, room).columns), strict=True)

    def finish(self) -> None:
        print_table(self._names, self._rows)


def _escaped_cells(cells: pa.Array) -> pa.Array:
    texts = [None if text is None else escaped(text) for text in cells.to_pylist()]
    return pa.array(texts, pa.large_string())


def table_cells(name: str, column: pa.Array) -> list[str]:
    """The values as people read them: no separators that were not sent, times as in Python."""
    kind, t = column.type, pa.types
    if t.is_string(kind):
        found = column.to_pylist()
    elif t.is_timestamp(kind) or t.is_date32(kind):
        found = _times(column)
    elif t.is_nested(kind) or t.is_binary(kind):
        encoded = [(value, msgspec.json.encode(value)) for value in json_values(name, column)]
        found = [v if v is None or isinstance(v, str) else text.decode() for v, text in encoded]
    else:
        found = csv_cells(name, column).to_pylist()
    return ["null" if value is None else value for value in found]


def _times(column: pa.Array) -> list[str | None]:
    if getattr(column.type, "unit", "") != "ns":
        with contextlib.suppress(OverflowError, ValueError):
            return [None if value is None else str(value) for value in column.to_pylist()]
    texts: list[str | None] = time_texts(column, "T").to_pylist()
    return texts
