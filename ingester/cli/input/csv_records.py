"""CSV text divided into whole records, as RFC 4180 defines them. Pure.

    head ─▶ dialect;  chunks ─▶ blocks that end at the end of a record

Text after a closing quote, and a quote inside a field without quotes, are refused with their column
(``tests/cli/test_text_inputs.py``). Parsers differ on what they mean, and pyarrow's, which reads
the blocks, drops the quotes. A record ends with LF, CRLF or CR.
"""

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..exits import CommandFailed
from .source import TextOptions

DELIMITERS = (",", ";", "\t", "|")
MAX_RECORD_BYTES = 64 * 1024**2  # the daemon's default for a whole batch
_SAMPLE_ROWS = 100


@dataclass(frozen=True)
class Dialect:
    """How records are split into columns."""

    delimiter: str
    names: list[str]
    quotes: bool = True
    """Whether a field may be quoted. If not, a quote is an ordinary character."""
    escape: str | None = None
    """What stands before a quote, or before itself, inside of quotes, as in PostgreSQL."""

    @cached_property
    def _quoted(self) -> bytes:
        e = re.escape((self.escape or "").encode())
        inner = rb'(?:""|%b.)' % e if e else b'""'
        return rb'"[^"%b]*+(?:%b[^"%b]*+)*+"' % (e, inner, e)

    @cached_property
    def field(self) -> bytes:
        """The pattern of a field."""
        d = re.escape(self.delimiter.encode())
        if not self.quotes:
            return rb"[^%b\r\n]*+" % d
        return rb'(?:[^"%b\r\n]++|%b)?+' % (d, self._quoted)

    @cached_property
    def beginning(self) -> re.Pattern[bytes]:
        """The complete fields that a text begins with."""
        d = re.escape(self.delimiter.encode())
        return re.compile(rb"%b(?:%b%b)*+" % (self.field, d, self.field), re.DOTALL)

    @cached_property
    def record(self) -> re.Pattern[bytes]:
        """A record. A CR at the very end may be half of its line end."""
        return re.compile(self.beginning.pattern + rb"(?:\r?\n|\r(?!\n|\Z))", re.DOTALL)

    @cached_property
    def records(self) -> re.Pattern[bytes]:
        return re.compile(rb"(?:%b)*+" % self.record.pattern, re.DOTALL)

    def doubled(self, records: bytes) -> bytes:
        """The records with doubled quotes instead of escapes, which not every parser knows."""
        if self.escape is None or self.escape.encode() not in records:
            return records
        escaped = re.compile(rb'%b("|%b)' % ((re.escape(self.escape.encode()),) * 2))

        def field(found: re.Match[bytes]) -> bytes:
            return escaped.sub(lambda one: b'""' if one[1] == b'"' else one[1], found[0])

        return re.sub(self._quoted, field, records, flags=re.DOTALL)


class BrokenRecord(Exception):
    """A record is not as RFC 4180 says; ``column`` counts from 0."""

    def __init__(self, column: int, why: str) -> None:
        super().__init__(why)
        self.column = column


def whole_records(chunks: Iterable[bytes], dialect: Dialect) -> Iterator[bytes]:
    """The same bytes in blocks of whole records. The last record gets a line end.

    Raises:
        BrokenRecord: All records before it have been returned.
    """
    text = b""
    for chunk in chunks:
        text += chunk
        if end := _end_of_records(text, dialect):
            yield text[:end]
            text = text[end:]
        if len(text) > MAX_RECORD_BYTES:
            raise _broken(text, dialect)
    if text:
        text += b"" if text.endswith(b"\n") else b"\n"
        if end := _end(dialect.records, text):
            yield text[:end]
        if end < len(text):
            raise _broken(text[end:], dialect)


def _end_of_records(text: bytes, dialect: Dialect) -> int:
    if b'"' not in text and (end := text.rfind(b"\n") + 1):
        return end
    return _end(dialect.records, text)


def _end(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.match(text)
    return 0 if found is None else found.end()


def _begins_field(text: bytes, at: int, dialect: Dialect) -> bool:
    return at == 0 or text[at - 1 : at] == dialect.delimiter.encode()


def _broken(text: bytes, dialect: Dialect) -> BrokenRecord:
    """What is wrong with the record that begins here, or what nothing has completed."""
    at, column, start = _end(dialect.beginning, text), 0, 0
    with_delimiter = dialect.field + re.escape(dialect.delimiter.encode())
    for one in re.finditer(with_delimiter, text[:at], re.DOTALL):
        column, start = column + 1, one.end()
    within = " within 64 MiB" if len(text) > MAX_RECORD_BYTES else ""
    shown = text[start : at + 20].split(b"\n")[0].decode(errors="replace")
    if text[at : at + 1] == b'"' and _begins_field(text, at, dialect):
        why = f"{shown!r} has no closing quote{within}"
    elif at == len(text):
        return BrokenRecord(column, f"the record has no end{within}")
    elif text[start : start + 1] == b'"':
        why = f"{shown!r} has text after its closing quote"
        if text[at - 2 : at - 1] == b"\\":
            why += "; if \\\" is a quote, use --escape '\\'"
    else:
        why = f"{shown!r} has a quote, but is not quoted"
        if text[at - 1 : at] == (dialect.escape or "\\").encode():
            return BrokenRecord(column, f"{why}; a quote is escaped only inside of quotes")
    return BrokenRecord(column, f"{why}; if quotes are ordinary characters, use --no-quotes")


def dialect_of(name: str, head: bytes, options: TextOptions) -> tuple[Dialect, int]:
    """The dialect, from the first bytes, and how many of them a line ``sep=;`` takes.

    Raises:
        CommandFailed: There is no header, or the delimiter is ambiguous.
    """
    delimiter, skipped = options.delimiter, 0
    if found := re.match(rb"sep=([ !#-~\t])\r?\n", head):  # as in Excel
        delimiter, skipped = delimiter or found[1].decode(), found.end()
    text = head[skipped:].decode(errors="ignore")
    if not re.split(r"[\r\n]", text, maxsplit=1)[0].strip():
        raise CommandFailed(
            f"cannot read {name}: it begins with an empty line, but a CSV file needs a header"
        )
    if delimiter is None:
        delimiter = _told(name, text)
    try:
        names = next(
            csv.reader(
                io.StringIO(text, newline=""),
                delimiter=delimiter,
                quoting=csv.QUOTE_MINIMAL if options.quotes else csv.QUOTE_NONE,
                escapechar=options.escape,
            )
        )
    except csv.Error as exc:
        raise CommandFailed(f"cannot read {name}: its header: {exc}") from exc
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise CommandFailed(f"cannot read {name}: its header has {twice[0]!r} more than once")
    return Dialect(delimiter, names, options.quotes, options.escape), skipped


def _told(name: str, text: str) -> str:
    """The delimiter that gives all first rows as many columns as the header."""
    lines = text.splitlines(keepends=True)
    sample = "".join(lines[: max(1, len(lines) - 1)][:_SAMPLE_ROWS])
    widths = {one: _widths(sample, one) for one in DELIMITERS}
    even = [one for one, rows in widths.items() if rows[0] > 1 and len(set(rows)) == 1]
    if len(even) == 1:
        return even[0]
    if not even and max(rows[0] for rows in widths.values()) == 1:
        return ","  # one column
    several = even or [one for one, rows in widths.items() if rows[0] > 1]
    if len(several) == 1:
        return several[0]  # the reader reports rows of another width
    options = " or ".join(repr(one) for one in several)
    raise CommandFailed(f"cannot read {name}: the delimiter may be {options}: give --delimiter")


def _widths(sample: str, delimiter: str) -> list[int]:
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # a long text that the sample cut off
        rows += csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    # The last row may have a quoted text that was cut off.
    found = [len(row) for row in (rows[:-1] if len(rows) > 2 else rows) if row]
    return found or [1]
