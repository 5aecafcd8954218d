"""Answers as table, CSV, JSON lines, Arrow IPC or Parquet, batch by batch.

Every format but ``table`` is written as it comes, in memory that does not grow with the answer.
A file appears whole, under its name, or not at all.
"""

import base64
import contextlib
import decimal
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from persist.leaf_stats import leaves_without_floats

from .ending import half_written
from .exits import USAGE, CommandFailed
from .facts import print_table

FORMATS = ("table", "csv", "jsonl", "arrow", "parquet")
BINARY = ("arrow", "parquet")
# A table is for eyes; what is longer is cut and said so.
TABLE_ROWS = 1000
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


class Sink(Protocol):
    """Where batches of one schema go."""

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


def open_sink(kind: str, target: Any, schema: pa.Schema, *, seekable: bool) -> Sink:
    """A sink of format ``kind`` (all but ``table``) that writes bytes to ``target``.

    Arrow is the file format where ``seekable``, else the stream format.
    """
    if kind == "jsonl":
        return JsonLinesSink(target)
    valve = _Valve(target)
    if kind == "csv":
        return CsvSink(valve, schema)
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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with half_written(part), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())  # mkstemp makes it private
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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


class CsvSink:
    """CSV with a heading. Lists, structs and maps are JSON, binary is base64."""

    def __init__(self, target: _Valve, schema: pa.Schema) -> None:
        self._valve = target
        self._changed = {f.name for f in schema if _needs_text(f.type)}
        fields = [pa.field(f.name, pa.string()) if f.name in self._changed else f for f in schema]
        self._schema = pa.schema(fields)
        self._writer = pyarrow.csv.CSVWriter(target, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            _as_texts(column) if field.name in self._changed else column
            for field, column in zip(self._schema, batch.columns, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def abandon(self) -> None:
        self._valve.shut = True

    def finish(self) -> None:
        self._writer.close()


class JsonLinesSink:
    """One object per row. Times are ISO 8601, decimals strings, binary base64, NaN null."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._encoder = msgspec.json.Encoder(enc_hook=json_value)

    def write(self, batch: pa.RecordBatch) -> None:
        self._target.write(self._encoder.encode_lines(rows_of(batch)))

    def finish(self) -> None:
        self._target.flush()

    def abandon(self) -> None:
        """Lines have no ending."""


class TableSink:
    """A table for people; ``more`` tells whether rows beyond ``limit_rows`` were left out."""

    def __init__(self, schema: pa.Schema, limit_rows: int) -> None:
        self._names = list(schema.names)
        self._limit = limit_rows
        self._rows: list[list[object]] = []
        self.more = False

    def write(self, batch: pa.RecordBatch) -> None:
        room = self._limit - len(self._rows)
        self.more = self.more or batch.num_rows > room
        for row in rows_of(batch.slice(0, room)):
            self._rows.append([_cell(value) for value in row.values()])

    def finish(self) -> None:
        print_table(self._names, self._rows)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python values; texts for nanoseconds and far years, which Python's times lack."""
    columns = [_values(_exact(column)) for column in batch.columns]
    names = batch.schema.names
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_value(value: object) -> object:
    """What msgspec does not know: the JSON form of a value that Arrow gave."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return str(value)


def _exact(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return pc.replace_substring(column.cast(pa.string()), " ", "T")
    return column


def _values(column: pa.Array) -> list[Any]:
    """As Python values; times that Python has none for, such as of the year 17036, as texts."""
    found: list[Any]
    try:
        found = column.to_pylist()
    except (OverflowError, ValueError):
        if pa.types.is_temporal(column.type):
            found = pc.replace_substring(column.cast(pa.string()), " ", "T").to_pylist()
        else:
            found = [_nested(cell) for cell in column]
    return found


def _nested(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        return "<a time out of range>"


def _needs_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _as_texts(column: pa.Array) -> pa.Array:
    encode: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=json_value).encode
    texts = [
        None
        if value is None
        else base64.b64encode(value).decode()
        if isinstance(value, bytes)
        else encode(value).decode()
        for value in _values(column)
    ]
    return pa.array(texts, pa.string())


def _cell(value: object) -> object:
    """A value as a cell: numbers stay as they are, without separators that were not sent."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | dict | tuple):
        return msgspec.json.encode(value, enc_hook=json_value).decode()
    return str(value)
