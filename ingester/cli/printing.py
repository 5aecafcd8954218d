"""Output of commands: JSON for programs, tables for people.

Names and values come from users. Control characters, line ends and direction marks in them are
escaped, in JSON as JSON does it (``tests/cli/test_hostile_text.py``).
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

import msgspec

from ingester.secret_texts import masked
from ingester.shown_text import escaped, escaped_json

if TYPE_CHECKING:
    from rich.table import Table


class Lines(NamedTuple):
    """A cell of several lines. A line end inside one of the texts is escaped."""

    texts: Sequence[str]


def print_json(facts: Any, indent: int = 2) -> None:
    """Print one JSON document on standard output; on one line if ``indent`` is -1."""
    text = msgspec.json.format(msgspec.json.encode(facts), indent=indent).decode()
    sys.stdout.write(escaped_json(text) + "\n")
    sys.stdout.flush()


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table on standard output, numbers right-aligned; in a pipe nothing is folded."""
    from rich.console import Console

    # A file or a pipe has no width; rich would fold at 80 columns.
    width = None if sys.stdout.isatty() else 100_000
    console = Console(width=width, highlight=False, soft_wrap=width is not None)
    console.print(table_of(headings, rows, title))


def table_of(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> "Table":
    """The table that :func:`print_table` prints."""
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    # Text objects, because rich interprets square brackets in strings.
    above = "\n" if title.startswith("\n") else ""
    heading_text = Text(above + escaped(title.removeprefix("\n")), style="italic")
    table = Table(
        title=heading_text if title else None, title_justify="left", box=None, pad_edge=False
    )
    for index, heading in enumerate(headings):
        numeric = bool(kept) and all(_is_number(row[index]) for row in kept)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(Text(escaped(heading)), justify=justify, overflow="fold")
    for row in kept:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def print_line(text: str, output: TextIO | None = None) -> None:
    """Print one line, by default on standard output."""
    print(escaped(text), flush=True, file=output)


def say(text: str) -> None:
    """Print one line on standard error, prefixed with the program's name."""
    print_line(masked(f"ingester: {text}"), sys.stderr)


def shown(value: object) -> str:
    """A value as a table cell: thousands separated, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def size(value: object) -> str:
    """Bytes for people: ``1.5 MiB``."""
    if not isinstance(value, int | float) or value < 0:
        return "-"
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _cell(value: object) -> str:
    if isinstance(value, Lines):
        return "\n".join(map(escaped, value.texts))
    return escaped(shown(value))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
