"""Query answers as a table, CSV, JSON lines, Arrow IPC or Parquet, batch by batch.

Memory does not grow with the answer, except for ``table``. A file appears under its name when it is
complete, or not at all.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ingester.shown_text import escaped, escaped_json
from ingester.value_texts import csv_cells, json_values, quoted_text, table_cells
from persist.parquet.stats import leaves_without_floats

from ..exits import USAGE, CommandFailed, half_written
from ..printing import print_table

FORMATS = ("table", "csv", "jsonl", "arrow", "parquet")
BINARY = ("arrow", "parquet")
TABLE_ROWS = 1000
"""Rows that ``--format table`` prints before it stops with a note."""
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
    """Writes batches of one schema in one format."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next batch."""

    def finish(self) -> None:
        """Write the format's ending. Not called after a failure."""

    def abandon(self) -> None:
        """Write no ending, so that an incomplete answer does not look complete."""


def format_of(given: str | None, output: Path | None) -> str:
    """The format: as given, else by the file's extension, else ``table``.

    Raises:
        CommandFailed: Unknown format, or a binary one for a terminal; exit code 2.
    """
    if given is not None and given not in FORMATS:
        raise CommandFailed(f"--format {given!r} is not one of {', '.join(FORMATS)}", USAGE)
    kind = given or (_BY_EXTENSION.get(output.suffix.lower()) if output else None) or "table"
    if output is not None and kind == "table" and given is None:
        raise CommandFailed(f"--output {output}: give --format ({', '.join(FORMATS[1:])})", USAGE)
    if output is not None and kind == "table":
        raise CommandFailed("--output does not support --format table", USAGE)
    if output is None and kind in BINARY and sys.stdout.isatty():
        raise CommandFailed(
            f"{kind} is a binary format: use --output or redirect standard output", USAGE
        )
    return kind


def open_sink(
    kind: str, target: Any, schema: pa.Schema, *, seekable: bool, terminal: bool = False
) -> BatchSink:
    """A sink of format ``kind`` (any but ``table``) that writes bytes to ``target``.

    Args:
        seekable: Write Arrow's file format; otherwise its stream format.
        terminal: Escape control and invisible characters. CSV readers do not undo this.
    """
    if kind == "jsonl":
        return JsonLinesSink(target, terminal)
    if kind == "csv":
        return CsvSink(target, schema, terminal)
    valve = _Valve(target)
    if kind == "parquet":
        # Statistics of floats would have to be known to exclude NaN, and Spark looks up 0.0 in a
        # dictionary that holds -0.0.
        plain = leaves_without_floats(schema)
        writer = pyarrow.parquet.ParquetWriter(
            valve, schema, compression="zstd", write_statistics=plain, use_dictionary=plain
        )
        return _ArrowSink(writer, valve)
    open_writer = pa.ipc.new_file if seekable else pa.ipc.new_stream
    return _ArrowSink(open_writer(valve, schema), valve)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Any]:
    """A file that gets its name when the block succeeds, and is removed otherwise."""
    part = path.parent.absolute() / f".{path.name}.{secrets.token_hex(4)}.part"
    with half_written(part):
        # Private while it is incomplete.
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
    """A file that can be shut off, as pyarrow's writers write an ending even in __del__."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._written = 0
        self.shut = False
        self.closed = False  # read by pyarrow

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
    """Arrow IPC and Parquet, by pyarrow's writers."""

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
    """Text formats, which have no ending."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def finish(self) -> None:
        self._target.flush()

    def abandon(self) -> None:
        pass


class CsvSink(_LinesSink):
    """CSV with a header: text is quoted, null is an empty field; see :mod:`ingester.value_texts`.

    pyarrow's CSV writer is not used. It writes the float 1.0 as 1, which is read back as an
    integer, small decimals as 1E-10, timestamps with a zone in local time, and wrong years beyond
    32767; it refuses lists, structs and maps; and text that stands for such a value would be quoted
    (``tests/cli/test_round_trip.py``, ``tests/cli/test_output_values.py``).
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
        cells = map(csv_cells, batch.columns)
        if self._terminal:
            cells = map(_escaped_cells, cells)
        comma, empty, end = (pa.scalar(text, pa.large_string()) for text in (",", "", "\n"))
        lines = pc.binary_join_element_wise(
            *cells, comma, null_handling="replace", null_replacement=""
        )
        # The data buffer of a string array is the concatenation of its values.
        self._target.write(pc.binary_join_element_wise(lines, empty, end).buffers()[2])


class JsonLinesSink(_LinesSink):
    """One JSON object per row; see :mod:`ingester.value_texts`."""

    def __init__(self, target: Any, terminal: bool = False) -> None:
        super().__init__(target)
        self._terminal = terminal

    def write(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        columns = map(json_values, batch.columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        lines = msgspec.json.Encoder().encode_lines(rows)
        self._target.write(escaped_json(lines.decode()).encode() if self._terminal else lines)


class TableSink:
    """A table on standard output; ``more`` is true if rows beyond ``limit_rows`` were omitted."""

    def __init__(self, schema: pa.Schema, limit_rows: int) -> None:
        self._names = list(schema.names)
        self._limit = limit_rows
        self._rows: list[Sequence[object]] = []
        self.more = False

    def write(self, batch: pa.RecordBatch) -> None:
        room = self._limit - len(self._rows)
        self.more = self.more or batch.num_rows > room
        self._rows += zip(*map(_cells, batch.slice(0, room).columns), strict=True)

    def finish(self) -> None:
        print_table(self._names, self._rows)

    @property
    def rows(self) -> int:
        """The number of rows shown."""
        return len(self._rows)


def _cells(column: pa.Array) -> list[str]:
    return ["null" if text is None else text for text in table_cells(column)]


def _escaped_cells(cells: pa.Array) -> pa.Array:
    texts = [None if text is None else escaped(text) for text in cells.to_pylist()]
    return pa.array(texts, pa.large_string())


WIDEST = 40
"""Maximum width to which a column is aligned, in characters."""
HEADING_EVERY = 50
"""Rows after which the heading is repeated on a terminal."""


class LiveTable:
    """An endless table: rows are printed as they arrive, and the columns may change.

    A column is as wide as its widest cell so far, up to :data:`WIDEST`. Nothing is cut: a longer
    cell shifts the rest of its row. The heading is printed again when the columns change.

    Args:
        say: Prints a line.
        repeats: Whether to repeat the heading every :data:`HEADING_EVERY` rows.
    """

    def __init__(self, say: Callable[[str], object], repeats: bool) -> None:
        self._say = say
        self._repeats = repeats
        self._names: list[str] = []
        self._widths: list[int] = []
        self._since_heading = 0

    def write(self, batch: pa.RecordBatch) -> None:
        names = list(map(escaped, batch.schema.names))
        columns = [[escaped(cell) for cell in _cells(column)] for column in batch.columns]
        if names != self._names:
            self._names, self._widths = names, [len(name) for name in names]
            self._since_heading = 0
        for at, cells in enumerate(columns):
            widest = max((len(cell) for cell in cells), default=0)
            self._widths[at] = max(self._widths[at], min(widest, WIDEST))
        for row in zip(*columns, strict=True):
            if self._since_heading == 0:
                self._say(self._line(self._names))
            self._say(self._line(row))
            self._since_heading += 1
            if self._repeats and self._since_heading >= HEADING_EVERY:
                self._since_heading = 0

    def _line(self, cells: tuple[str, ...] | list[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()
