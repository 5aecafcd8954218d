"""A text input as UTF-8 bytes: a file that can be read twice, or a stream that comes once.

Law of this file: bytes that are not UTF-8 are refused by name with what helps, never guessed at.
"""

import codecs
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..exits import USAGE, CommandFailed
from .type_names import parse_column_types

STANDARD_INPUT = "-"
PACKED = (".gz", ".bz2", ".zst", ".lz4", ".br")
BLOCK_BYTES = 4 * 1024**2  # of text parsed at a time
_HEAD_BYTES = 256 * 1024
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OTHERS = "--encoding latin-1 (or cp1252, or whichever it is) reads it"


class TextOptions(NamedTuple):
    """How texts are to be read, where that is said."""

    column_types: dict[str, pa.DataType]
    delimiter: str | None = None
    null_words: tuple[str, ...] = ()
    encoding: str | None = None
    decimal_comma: bool = False
    whole_lines: bool = False
    """Of a file that may be growing: a last line without its end is left out."""


def text_options(
    column_types: list[str] | None,
    delimiter: str | None,
    null_words: list[str] | None,
    decimal_comma: bool,
    encoding: str | None,
) -> TextOptions:
    """The options as typed, checked.

    Raises:
        CommandFailed: one is wrong, with exit code 2.
    """
    if delimiter is not None:
        delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise CommandFailed(
                f"--delimiter {delimiter!r} is not one ASCII character, or \\t for a tab", USAGE
            )
    if encoding is not None:
        encoding = _known(encoding)
    types = parse_column_types(column_types or [])
    return TextOptions(types, delimiter, tuple(null_words or ()), encoding, decimal_comma)


class TextSource:
    """One input. ``comes_once`` where it is a pipe: then :meth:`open` may be called once."""

    def __init__(
        self, name: str, encoding: str | None = None, *, whole_lines: bool = False
    ) -> None:
        """With ``whole_lines`` a plain file is as long as its whole lines of now, until the end.

        Raises:
            OSError
        """
        self.name = name
        self.shown = shown(name)
        self.comes_once = name == STANDARD_INPUT or not Path(name).is_file()
        self._encoding = encoding
        self._nbytes: int | None = None
        self.breaks_off = False
        """Whether the file goes on behind its last whole line."""
        plain = encoding in (None, "utf-8") and Path(name).suffix.lower() not in PACKED
        if whole_lines and plain and not self.comes_once:
            self._nbytes, self.breaks_off = _whole_lines(Path(name))

    def open(self) -> Any:
        """Its bytes from the first on, as UTF-8, unpacked; a file with ``read`` and ``close``."""
        raw = self._raw()
        if self._encoding in (None, "utf-8"):
            return raw
        return pa.transcoding_input_stream(raw, self._encoding, "utf-8")

    def _raw(self) -> Any:
        if self.name == STANDARD_INPUT:
            return pa.PythonFile(sys.stdin.buffer, mode="r")
        if self.comes_once:
            return pa.PythonFile(Path(self.name).open("rb"), mode="r")
        Path(self.name).open("rb").close()  # for the system's own words where it fails
        if self._nbytes is not None:
            return pa.OSFile(self.name).get_stream(0, self._nbytes)
        return pa.input_stream(self.name)  # unpacks .gz, .bz2, .zst, …


def _whole_lines(path: Path) -> tuple[int, bool]:
    """How many bytes a file's whole lines have, and whether more comes behind them."""
    with path.open("rb") as file:
        size = end = file.seek(0, io.SEEK_END)
        while end:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            if (found := file.read(end - start).rfind(b"\n")) >= 0:
                return start + found + 1, start + found + 1 < size
            end = start
    return size, False  # a single line: its header, or nothing


class Rewound(io.RawIOBase):
    """A file of which a head was read already, from its first byte on."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with less at the end."""
        wanted = len(buffer)
        if self._head:
            found, self._head = self._head[:wanted], self._head[wanted:]
        else:
            found = self._rest.read(wanted)
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the file, too."""
        self._rest.close()
        super().close()


def head_of(source: TextSource, file: Any) -> bytes:
    """The first bytes, checked to be UTF-8 text, without a byte order mark.

    Raises:
        CommandFailed: they are not.
    """
    head: bytes = file.read(_HEAD_BYTES)
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            raise CommandFailed(
                f"cannot read {source.shown}: it is {name.upper()} and not UTF-8;"
                f" --encoding {name} reads it"
            )
    if b"\0" in head[:4096]:
        raise CommandFailed(
            f"cannot read {source.shown}: it has zero bytes, as UTF-16 without its mark has, or"
            " what is no text at all; --encoding utf-16-le (or utf-16-be) reads such text"
        )
    check_utf8(source.shown, head, rows_before=0, whole=len(head) < _HEAD_BYTES)
    return head.removeprefix(codecs.BOM_UTF8)


def check_utf8(name: str, text: bytes, *, rows_before: int, whole: bool = True) -> None:
    """Refuse what is not UTF-8, with its line; where not ``whole``, the end may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text, whole)
    except UnicodeDecodeError as exc:
        line = rows_before + text.count(b"\n", 0, exc.start) + 1
        raise CommandFailed(
            f"cannot read {name}: line {line:,} is not UTF-8 (byte 0x{text[exc.start]:02x});"
            f" {OTHERS}"
        ) from exc


def shown(name: str) -> str:
    """An input as messages name it."""
    return "standard input" if name == STANDARD_INPUT else name


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise CommandFailed(
            f"--encoding {encoding!r} is not known; such as utf-16, latin-1, cp1252 are", USAGE
        ) from None
