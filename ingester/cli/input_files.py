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


Opened = tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]


class InputFile:
    """One opened input: its schema, its batches, and how many rows it has where that is known."""

    def __init__(
        self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], rows: int | None
    ) -> None:
        self._name = name
        self.schema = schema
        self.rows = rows
        self._batches = batches

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of at most ``batch_rows`` rows and about 16 MiB.

        Raises:
            CommandFailed: the rest cannot be read.
        """
        with _readable(self._name):
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
        with _readable(name):
            source = _source(name, kind, stack)
            opener = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl, "arrow": _arrow}[kind]
            schema, batches, rows = opener(source, table_schema)
        yield InputFile(name, schema, batches, rows)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    shown = "standard input" if name == STANDARD_INPUT else name
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise CommandFailed(f"cannot read {shown}: {reason}") from exc


def _source(name: str, kind: str, stack: contextlib.ExitStack) -> Any:
    if name != STANDARD_INPUT:
        if kind in ("csv", "jsonl"):
            Path(name).open("rb").close()  # for the system's own words where it fails
            return stack.enter_context(pa.input_stream(name))  # unpacks .gz
        return stack.enter_context(Path(name).open("rb"))
    if kind == "parquet" or (kind == "arrow" and _is_arrow_file(sys.stdin.buffer)):
        return _spooled(sys.stdin.buffer, stack)  # the index is at the end
    return stack.enter_context(pa.PythonFile(sys.stdin.buffer, mode="r"))


def _spooled(stream: BinaryIO, stack: contextlib.ExitStack) -> Any:
    spool = stack.enter_context(tempfile.TemporaryFile("w+b"))  # noqa: SIM115 (the stack closes it)
    shutil.copyfileobj(stream, spool)
    spool.seek(0)
    return spool


def _is_arrow_file(stream: Any) -> bool:
    """File format or stream format: a stream begins with another byte. Reads nothing away."""
    head = stream.peek(len(_ARROW_FILE_MAGIC))[: len(_ARROW_FILE_MAGIC)]
    return len(head) > 0 and _ARROW_FILE_MAGIC.startswith(head)


def _parquet(source: Any, _: pa.Schema | None) -> Opened:
    file = pyarrow.parquet.ParquetFile(source)
    # One row group is decoded in parts, so that a large one does not fill the memory.
    batches = file.iter_batches(batch_size=16_384)
    return file.schema_arrow, batches, int(file.metadata.num_rows)


def _csv(source: Any, table_schema: pa.Schema | None) -> Opened:
    types = {} if table_schema is None else {field.name: field.type for field in table_schema}
    reader = pyarrow.csv.open_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types),
    )
    return reader.schema, iter(reader), None


def _jsonl(source: Any, table_schema: pa.Schema | None) -> Opened:
    parse = pyarrow.json.ParseOptions(
        explicit_schema=table_schema, unexpected_field_behavior="infer"
    )
    reader = pyarrow.json.open_json(
        source, read_options=pyarrow.json.ReadOptions(block_size=BLOCK_BYTES), parse_options=parse
    )
    return reader.schema, iter(reader), None


def _arrow(source: Any, _: pa.Schema | None) -> Opened:
    if not isinstance(source, pa.PythonFile) and _is_arrow_file(source):
        file = pa.ipc.open_file(source)
        batches = (file.get_batch(n) for n in range(file.num_record_batches))
        return file.schema, batches, None
    reader = pa.ipc.open_stream(source)
    return reader.schema, iter(reader), None
