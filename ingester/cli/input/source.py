"""A text input as UTF-8 bytes: a file that can be read twice, or a stream that comes once.

Law of this file: bytes that are not UTF-8 are refused by name with what helps, never guessed at.
"""

import codecs
import io
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from ..exits import USAGE, CommandFailed
from .type_names import parse_column_types

Block = TypeVar("Block")

STANDARD_INPUT = "-"
PACKED = (".gz", ".bz2", ".zst", ".lz4", ".br")
BLOCK_BYTES = 4 * 1024**2  # of text parsed at a time
HELD_BYTES = 32 * 1024**2
"""The most text that is kept between two passes; a file of more is read twice."""
_HEAD_BYTES = 256 * 1024
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OTHERS = "--encoding latin-1 (or cp1252, or whichever it is) reads it"


class TextOptions(NamedTuple):
    """The options of reading texts, as far as the command gives them."""

    column_types: dict[str, pa.DataType]
    delimiter: str | None = None
    null_words: tuple[str, ...] = ()
    encoding: str | None = None
    decimal_comma: bool = False
    whole_lines: bool = False
    """Whether the file may be growing, so that a last line without its end is left out."""


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
        try:
            encoding = codecs.lookup(encoding).name
        except LookupError:
            raise CommandFailed(
                f"--encoding {encoding!r} is not known; such as utf-16, latin-1, cp1252 are", USAGE
            ) from None
    types = parse_column_types(column_types or [])
    return TextOptions(types, delimiter, tuple(null_words or ()), encoding, decimal_comma)


class TextSource:
    """One input. ``comes_once`` where it is a pipe: then :meth:`open` may be called once."""

    def __init__(
        self, name: str, encoding: str | None = None, *, whole_lines: bool = False
    ) -> None:
        """Look at the file; with ``whole_lines`` it ends, for good, at its last line end of now.

        Raises:
            OSError: the file cannot be read.
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
        """The input's bytes from the first on, UTF-8 and unpacked; has ``read`` and ``close``."""
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
    """The size of a file's whole lines in bytes, and whether more comes behind them."""
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
        """Say yes: `io` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with less at the end."""
        size = len(buffer)
        if self._head:
            found, self._head = self._head[:size], self._head[size:]
        else:
            found = self._rest.read(size)
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the file as well."""
        self._rest.close()
        super().close()


class Passes(Generic[Block]):
    """Two passes over the blocks of an input: one to find the types, one to read.

    Of what comes once, the first pass sees the first block alone.
    """

    def __init__(
        self, blocks: Iterator[Block], read_again: Callable[[], Iterator[Block]], comes_once: bool
    ) -> None:
        self._blocks = blocks
        self._read_again = read_again
        self._comes_once = comes_once
        self._held: list[Block] = []
        self._bytes = 0

    def first(self, nbytes: Callable[[Block], int]) -> Iterator[Block]:
        """The blocks to find the types by."""
        for block in islice(self._blocks, 1) if self._comes_once else self._blocks:
            yield block
            self._bytes += nbytes(block)
            self._held = [*self._held, block] if self._holds_all else []

    def again(self) -> Iterator[Block]:
        """The blocks of the first pass once more."""
        return iter(self._held) if self._holds_all else self._read_again()

    def second(self) -> Iterator[Block]:
        """All blocks."""
        return chain(self._held, self._blocks) if self._comes_once else self.again()

    @property
    def _holds_all(self) -> bool:
        return self._comes_once or self._bytes <= HELD_BYTES


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
