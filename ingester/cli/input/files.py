"""Files as streams of record batches, in memory that does not grow with the file.

Where the table exists, text formats are read with its column types, and where it does not with such
as hold all that is written: :mod:`.csv_rows` and :mod:`.json_lines`.
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

from ingester.client.batches import cut_table

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
    """The format of an input: the one given, else by the file's extension, ``.gz`` aside.

    Raises:
        CommandFailed: neither tells, with exit code 2.
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
        CommandFailed: it cannot be read.
    """
    with _readable(name):
        whole = options.whole_lines and kind == "csv"  # half a line of JSON is none
        return TextSource(name, options.encoding, whole_lines=whole)


@contextlib.contextmanager
def opened(
    name: str, kind: str, table_schema: pa.Schema | None, options: TextOptions
) -> Iterator[InputFile]:
    """The input, open while in the ``with`` block.

    Raises:
        CommandFailed: it is not there or not of this format.
    """
    with contextlib.ExitStack() as stack, _readable(name):
        if kind in ("csv", "jsonl"):
            text = source_of(name, kind, options)
            if text.breaks_off:
                say_failure(
                    f"{text.shown}: the last line has no line end and is left out, as it may be in"
                    " the middle of being written: end it, and write the file again"
                )
            made = (CsvRows if kind == "csv" else JsonLines)(text, options, table_schema)
            schema, batches, rows = made.schema, made.batches(), made.rows
        else:
            opener = {"parquet": _parquet, "arrow": _arrow}[kind]
            schema, batches, rows = opener(_source(name, kind, stack))
            _check_names(schema)
        # What fails from here on is not the file's opening.
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
            what = "a name in it is not UTF-8" if utf8 else f"it is not {exc.encoding}"
            reason = f"{what}: {exc.object[:80]!r}"
        elif "ecrypt" in reason:
            reason += "; it is encrypted: write it without, as keys are not taken here"
        raise CommandFailed(f"cannot read {shown(name)}: {reason}") from exc


def _check_names(kind: Any) -> None:
    """Raise UnicodeDecodeError for names that are not UTF-8, as deep as they are."""
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
        # The index is at the end.
        spool = stack.enter_context(tempfile.TemporaryFile("w+b"))  # noqa: SIM115 (as above)
        shutil.copyfileobj(raw, spool)
        spool.seek(0)
        return spool
    return stack.enter_context(pa.PythonFile(raw, mode="r"))


def _is_arrow_file(stream: Any) -> bool:
    """File format or stream format: a stream begins with another byte. Reads nothing away."""
    head = stream.peek(len(_ARROW_FILE_MAGIC))[: len(_ARROW_FILE_MAGIC)]
    return len(head) > 0 and _ARROW_FILE_MAGIC.startswith(head)


def _parquet(source: Any) -> Opened:
    # What is read ahead is kept to the end, so that it would be all of the file; and one row group
    # is decoded in parts, so that a large one does not fill the memory.
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
