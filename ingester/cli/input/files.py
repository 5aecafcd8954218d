"""Files as streams of record batches. Memory does not grow with the file.

Text formats use the table's column types, if it exists, and otherwise inferred types that hold
every value: :mod:`.csv_rows` and :mod:`.json_lines`.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from ingester.client.inputs import cut_table

from ..exits import USAGE, CommandFailed, say_failure
from .csv_rows import CsvRows
from .json_lines import JsonLines
from .source import PACKED, STANDARD_INPUT, TextOptions, TextSource, shown

FORMATS = ("parquet", "csv", "jsonl", "arrow")
_BY_EXTENSION = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
MAX_BATCH_BYTES = 16 * 1024**2
_ARROW_FILE_MAGIC = b"ARROW1"


Opened = tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]


class InputFile:
    """One opened input: schema, batches, and the number of rows if it is known."""

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
            CommandFailed: The rest cannot be read.
        """
        with _readable(self._name):
            for batch in self._batches:
                for start in range(0, batch.num_rows, batch_rows):
                    piece = pa.Table.from_batches([batch.slice(start, batch_rows)])
                    yield from cut_table(piece, MAX_BATCH_BYTES)


def format_of(name: str, given: str | None) -> str:
    """The format of an input: as given, else by the file's extension, ignoring ``.gz``.

    Raises:
        CommandFailed: The format is unknown; exit code 2.
    """
    if given is not None:
        if given not in FORMATS:
            known = ", ".join(FORMATS)
            raise CommandFailed(f"--input-format {given!r} is not one of {known}", USAGE)
        return given
    path = Path(name)
    packed = path.suffix.lower() in PACKED
    suffix = Path(path.stem).suffix if packed else path.suffix
    if suffix.lower() not in _BY_EXTENSION:
        where = "standard input" if name == STANDARD_INPUT else repr(name)
        raise CommandFailed(f"{where}: give --input-format ({', '.join(FORMATS)})", USAGE)
    return _BY_EXTENSION[suffix.lower()]


def source_of(name: str, kind: str, options: TextOptions) -> TextSource:
    """The text of an input.

    Raises:
        CommandFailed: The input cannot be read.
    """
    with _readable(name):
        whole = (
            options.whole_lines and kind == "csv"
        )  # an incomplete line of JSON is invalid anyway
        return TextSource(name, options.encoding, whole_lines=whole)


@contextlib.contextmanager
def opened(
    name: str, kind: str, table_schema: pa.Schema | None, options: TextOptions
) -> Iterator[InputFile]:
    """The input, open during the ``with`` block.

    Raises:
        CommandFailed: The file does not exist or has another format.
    """
    with contextlib.ExitStack() as stack, _readable(name):
        if kind in ("csv", "jsonl"):
            text = source_of(name, kind, options)
            if text.breaks_off:
                say_failure(
                    f"{text.shown}: the last line has no line end and is left out, as it may be"
                    " incomplete: end the line and write the file again"
                )
            made = (CsvRows if kind == "csv" else JsonLines)(text, options, table_schema)
            schema, batches, rows = made.schema, made.batches(), made.rows
        else:
            opener = {"parquet": _parquet, "arrow": _arrow}[kind]
            schema, batches, rows = opener(_source(name, kind, stack))
            _check_names(schema)
        # Later errors are not about opening the file.
        closing = stack.pop_all()
    with closing:
        yield InputFile(name, schema, batches, rows)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        if isinstance(exc, UnicodeDecodeError):
            utf8 = exc.encoding.replace("-", "") == "utf8"
            what = "a column name is not UTF-8" if utf8 else f"it is not {exc.encoding}"
            reason = f"{what}: {exc.object[:80]!r}"
        elif "ecrypt" in reason:
            reason += "; encrypted files are not supported"
        raise CommandFailed(f"cannot read {shown(name)}: {reason}") from exc


def _check_names(kind: Any) -> None:
    """Raise UnicodeDecodeError for a name, at any depth, that is not UTF-8."""
    fields = kind if isinstance(kind, pa.Schema) else map(kind.field, range(kind.num_fields))
    for field in fields:
        assert isinstance(field.name, str)
        _check_names(field.type)


def _source(name: str, kind: str, stack: contextlib.ExitStack) -> Any:
    if name == STANDARD_INPUT:
        raw: Any = sys.stdin.buffer
    else:
        raw = Path(name).open("rb")  # noqa: SIM115 (the stack closes it)
        stack.enter_context(raw)
        if Path(name).is_file():
            if not os.fstat(raw.fileno()).st_size:
                raise CommandFailed(f"cannot read {name}: it is empty")
            return raw
    if kind == "parquet" or _is_arrow_file(raw):
        # The index is at the end of the file, so copy the pipe first.
        spool = stack.enter_context(tempfile.TemporaryFile("w+b"))  # noqa: SIM115 (as above)
        shutil.copyfileobj(raw, spool)
        spool.seek(0)
        return spool
    return stack.enter_context(pa.PythonFile(raw, mode="r"))


def _is_arrow_file(stream: Any) -> bool:
    """Whether this is Arrow's file format and not its stream format. Consumes nothing."""
    head = stream.peek(len(_ARROW_FILE_MAGIC))[: len(_ARROW_FILE_MAGIC)]
    return len(head) > 0 and _ARROW_FILE_MAGIC.startswith(head)


def _parquet(source: Any) -> Opened:
    # pre_buffer would keep the whole file in memory. Row groups are decoded in parts for the same
    # reason.
    file = pyarrow.parquet.ParquetFile(source, pre_buffer=False)
    batches = file.iter_batches(batch_size=16_384)
    return file.schema_arrow, batches, int(file.metadata.num_rows)


def _arrow(source: Any) -> Opened:
    if not isinstance(source, pa.PythonFile) and _is_arrow_file(source):
        file = pa.ipc.open_file(source)
        batches = (file.get_batch(n) for n in range(file.num_record_batches))
        return file.schema, batches, None
    reader = pa.ipc.open_stream(source)
    return reader.schema, iter(reader), None
