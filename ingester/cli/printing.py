"""Commands print what they found: JSON for programs, small tables for people."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.table import Table


def print_json(facts: Any) -> None:
    """Print one JSON document, indented, on standard output."""
    text = msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table on standard output, numbers to the right; in a pipe nothing is cut off."""
    from rich.console import Console

    # A file or a pipe has no width; 80 columns would fold what a script wants to read.
    width = None if sys.stdout.isatty() else 100_000
    console = Console(width=width, highlight=False, soft_wrap=width is not None)
    console.print(table_of(headings, rows, title))


def table_of(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> "Table":
    """Return the table that :func:`print_table` prints."""
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        numeric = bool(kept) and all(_is_number(row[index]) for row in kept)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*(Text(_harmless(shown(value))) for value in row))
    return table


def print_line(text: str, output: TextIO | None = None) -> None:
    """Print one line, on standard output unless it is said where."""
    print(text, flush=True, file=output)


def shown(value: object) -> str:
    """A value as a cell: thousands separated, nothing for None."""
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


def _harmless(text: str) -> str:
    """Return the text with what a terminal would take for an order as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
