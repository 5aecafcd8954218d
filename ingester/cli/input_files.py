"""Files as streams of record batches, in memory that does not grow with the file.

Where the table exists, text formats are read with its column types: a file alone does not tell
that ``007`` is a text.
"""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from ingester.client.splitting import cut_table

from .exits import USAGE, CommandFailed

FORMATS = ("parquet", "csv", "jsonl", "arrow")
_BY_EXTENSION = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
STANDARD_INPUT = "-"
BLOCK_BYTES = 4 * 1024**2  # of text parsed at a time
MAX_BATCH_BYTES = 16 * 1024**2
_ARROW_FILE_MAGIC = b"ARROW1"


class InputFile:
    """One opened input: its schema, its batches, and how many rows it has where that is known."""

    def __init__(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], rows: int | None
    ) -> None:
        self.schema = schema
        self.rows = rows
        self._batches = batches

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of at most ``batch_rows`` rows and about 16 MiB.

        Raises:
            CommandFailed: the rest cannot be read.
        """
        with _readable():
            for batch in self._batches:
                for start in range(0, batch.num_rows, batch_rows):
                    piece = pa.Table.from_batches([batch.slice(start, batch_rows)])
                    yield from cut_table(piece, MAX_BATCH_BYTES)


def format_of(name: str, given: str | None) -> str:
    """The format of an input: the one given, else by the file's extension (``.gz`` aside).

    Raises:
        CommandFailed: neither tells, with exit code 2.
    """
    if given is not None:
        if given not in FORMATS:
            known = ", ".join(FORMATS)
            raise CommandFailed(f"--input-format {given!r} is not one of {known}", USAGE)
        return given
    path = Path(name)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in _BY_EXTENSION:
        where = "standard input" if name == STANDARD_INPUT else repr(name)
        raise CommandFailed(f"{where}: give --input-format ({', '.join(FORMATS)})", USAGE)
    return _BY_EXTENSION[suffix.lower()]


@contextlib.contextmanager
def opened(name: str, kind: str, table_schema: pa.Schema | None) -> Iterator[InputFile]:
    """The input, open while in the ``with`` block.

    Raises:
        CommandFailed: it is not there or not of this format.
    """
    with contextlib.ExitStack() as stack:
        with _readable():
            source = _source(name, kind, stack)
            opener = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl, "arrow": _arrow}[kind]
            file = opener(source, table_schema)
        yield file


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        raise CommandFailed(f"cannot read: {exc}") from exc
    except pa.ArrowException as exc:
        raise CommandFailed(f"cannot read: {exc}") from exc


def _source(name: str, kind: str, stack: contextlib.ExitStack) -> Any:
    if name != STANDARD_INPUT:
        if kind in ("csv", "jsonl"):
            return stack.enter_context(pa.input_stream(name))  # unpacks .gz
        return stack.enter_context(Path(name).open("rb"))
    if kind == "parquet":  # its index is at the end
        return _spooled(sys.stdin.buffer, stack)
    return stack.enter_context(pa.PythonFile(sys.stdin.buffer, mode="r"))


def _spooled(stream: BinaryIO, stack: contextlib.ExitStack) -> Any:
    spool = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
    shutil.copyfileobj(stream, spool)
    spool.seek(0)
    return spool


def _parquet(source: Any, _: pa.Schema | None) -> InputFile:
    file = pyarrow.parquet.ParquetFile(source)
    # One row group is decoded in parts, so that a large one does not fill the memory.
    batches = file.iter_batches(batch_size=16_384)
    return InputFile(file.schema_arrow, batches, int(file.metadata.num_rows))


def _csv(source: Any, table_schema: pa.Schema | None) -> InputFile:
    types = {} if table_schema is None else {field.name: field.type for field in table_schema}
    reader = pyarrow.csv.open_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types),
    )
    return InputFile(reader.schema, iter(reader), None)


def _jsonl(source: Any, table_schema: pa.Schema | None) -> InputFile:
    parse = pyarrow.json.ParseOptions(
        explicit_schema=table_schema, unexpected_field_behavior="infer"
    )
    reader = pyarrow.json.open_json(
        source, read_options=pyarrow.json.ReadOptions(block_size=BLOCK_BYTES), parse_options=parse
    )
    return InputFile(reader.schema, iter(reader), None)


def _arrow(source: Any, _: pa.Schema | None) -> InputFile:
    if source.seekable():
        magic = source.read(len(_ARROW_FILE_MAGIC))
        source.seek(0)
        if magic == _ARROW_FILE_MAGIC:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(n) for n in range(file.num_record_batches))
            return InputFile(file.schema, batches, None)
    reader = pa.ipc.open_stream(source)
    return InputFile(reader.schema, iter(reader), None)
