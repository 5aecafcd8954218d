"""A text input as UTF-8 bytes: a file, which can be read twice, or a pipe.

Bytes that are not UTF-8 are refused with a hint, never guessed
(``tests/cli/test_text_inputs.py``).
"""

import codecs
import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..exits import USAGE, CommandFailed
from .type_names import parse_column_types

STANDARD_INPUT = "-"
PACKED = (".gz", ".bz2", ".zst", ".lz4", ".br")
BLOCK_BYTES = 4 * 1024**2  # of text parsed at a time
HEAD_BYTES = 256 * 1024
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OTHERS = "give its encoding, such as --encoding latin-1 or cp1252"


class TextOptions(NamedTuple):
    """Options for reading text formats."""

    column_types: dict[str, pa.DataType]
    delimiter: str | None = None
    null_words: tuple[str, ...] = ()
    encoding: str | None = None
    decimal_comma: bool = False
    quotes: bool = True
    escape: str | None = None
    whole_lines: bool = False
    """Whether to leave out a last line without a line end, as the file may be growing."""


def text_options(
    column_types: list[str] | None,
    delimiter: str | None,
    null_words: list[str] | None,
    decimal_comma: bool,
    encoding: str | None,
    escape: str | None = None,
    no_quotes: bool = False,
) -> TextOptions:
    """The command's options, checked.

    Raises:
        CommandFailed: An option is invalid; exit code 2.
    """
    if delimiter is not None:
        delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise CommandFailed(
                f"--delimiter {delimiter!r} is not one ASCII character, or \\t for a tab", USAGE
            )
    if encoding is not None:
        try:
            encoding = codecs.lookup(encoding).name
        except LookupError:
            raise CommandFailed(
                f"--encoding {encoding!r} is unknown; use for example utf-16, latin-1, cp1252",
                USAGE,
            ) from None
    if escape is not None and (len(escape) != 1 or not escape.isascii() or escape in '"\r\n'):
        raise CommandFailed(f"--escape {escape!r} is not one ASCII character, such as \\", USAGE)
    if escape is not None and no_quotes:
        raise CommandFailed("--escape is for quotes, which --no-quotes takes as they are", USAGE)
    types, nulls = parse_column_types(column_types or []), tuple(null_words or ())
    return TextOptions(
        types, delimiter, nulls, encoding, decimal_comma, quotes=not no_quotes, escape=escape
    )


class TextSource:
    """One input. If it is a pipe, ``comes_once`` is true and :meth:`open` may be called once."""

    def __init__(
        self, name: str, encoding: str | None = None, *, whole_lines: bool = False
    ) -> None:
        """Open the file; with ``whole_lines`` its end is fixed at the current last line end.

        Raises:
            OSError: The file cannot be read.
        """
        self.name = name
        self.shown = shown(name)
        self.comes_once = name == STANDARD_INPUT or not Path(name).is_file()
        self._encoding = encoding
        self._nbytes: int | None = None
        self.breaks_off = False
        """Whether the file ends with an incomplete line."""
        plain = encoding in (None, "utf-8") and Path(name).suffix.lower() not in PACKED
        if whole_lines and plain and not self.comes_once:
            self._nbytes, self.breaks_off = _whole_lines(Path(name))

    def open(self) -> Any:
        """The input's bytes, decompressed and in UTF-8; has ``read`` and ``close``."""
        raw = self._raw()
        if self._encoding in (None, "utf-8"):
            return raw
        return pa.transcoding_input_stream(raw, self._encoding, "utf-8")

    def chunks(self) -> Iterator[bytes]:
        """The text in chunks of :data:`BLOCK_BYTES`, without a byte order mark.

        Raises:
            CommandFailed: It is not UTF-8.
        """
        with contextlib.closing(self.open()) as file:
            yield _checked_head(self.shown, bytes(file.read(BLOCK_BYTES)))
            while chunk := bytes(file.read(BLOCK_BYTES)):
                yield chunk

    def _raw(self) -> Any:
        if self.name == STANDARD_INPUT:
            return pa.PythonFile(sys.stdin.buffer, mode="r")
        if self.comes_once:
            return pa.PythonFile(Path(self.name).open("rb"), mode="r")
        Path(self.name).open("rb").close()  # fails with the system's error message
        if self._nbytes is not None:
            return pa.OSFile(self.name).get_stream(0, self._nbytes)
        return pa.input_stream(self.name)  # decompresses .gz, .bz2, .zst, …


def _whole_lines(path: Path) -> tuple[int, bool]:
    """The size of a file's complete lines in bytes, and whether an incomplete one follows."""
    with path.open("rb") as file:
        size = end = file.seek(0, io.SEEK_END)
        while end:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            if (found := file.read(end - start).rfind(b"\n")) >= 0:
                return start + found + 1, start + found + 1 < size
            end = start
    return size, False  # a single line: its header, or nothing


def _checked_head(name: str, head: bytes) -> bytes:
    """The first bytes, without a byte order mark.

    Raises:
        CommandFailed: They are not UTF-8.
    """
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            raise CommandFailed(
                f"cannot read {name}: it is {encoding.upper()}, not UTF-8;"
                f" use --encoding {encoding}"
            )
    if b"\0" in head[:4096]:
        raise CommandFailed(
            f"cannot read {name}: it has zero bytes, so it is binary, or UTF-16 without a"
            " byte order mark; for the latter use --encoding utf-16-le or utf-16-be"
        )
    return head.removeprefix(codecs.BOM_UTF8)


def check_utf8(name: str, text: bytes, *, rows_before: int) -> None:
    """Refuse text that is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as exc:
        line = rows_before + text.count(b"\n", 0, exc.start) + 1
        raise CommandFailed(
            f"cannot read {name}: line {line:,} is not UTF-8 (byte 0x{text[exc.start]:02x});"
            f" {OTHERS}"
        ) from exc


def shown(name: str) -> str:
    """An input's name in messages."""
    return "standard input" if name == STANDARD_INPUT else name
