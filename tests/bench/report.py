"""Tables and targets, as text for people and as JSON for programs.

Pure functions. The text shows medians and spreads, the JSON has every value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.bench.samples import Samples, formatted

Cell = Samples | str | int | None


@dataclass(frozen=True, slots=True)
class Target:
    """A target for a number: at least ``wanted``, or below it where less is better."""

    what: str
    wanted: float
    measured: Samples
    below: bool = False

    @property
    def met(self) -> bool:
        """Whether the median meets the target."""
        middle = self.measured.median
        return middle < self.wanted if self.below else middle >= self.wanted

    def texts(self) -> list[str]:
        """One row: what, wanted, measured, verdict."""
        sign = "<" if self.below else ">="
        wanted = f"{sign} {formatted(self.wanted, self.measured.unit)}"
        return [self.what, wanted, str(self.measured), "met" if self.met else "MISSED"]

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Target:
        """Parse the output of :meth:`as_json`."""
        measured = Samples(tuple(body["values"]), body["unit"])
        return cls(body["what"], body["wanted"], measured, body["below"])

    def as_json(self) -> dict[str, Any]:
        """Return the target with every repeat's value."""
        return {
            "what": self.what,
            "wanted": self.wanted,
            "below": self.below,
            "met": self.met,
            **_json_cell(self.measured),
        }


@dataclass(slots=True)
class Table:
    """One table; each row maps column names to cells, a missing cell is blank."""

    name: str
    title: str
    columns: list[str]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, **cells: Cell) -> None:
        """Add one row; underscores in names become spaces, double underscores a slash."""
        named = {key.replace("__", "/").replace("_", " "): value for key, value in cells.items()}
        unknown = named.keys() - set(self.columns)
        if unknown:
            raise ValueError(f"table {self.name}: no columns {sorted(unknown)}")
        self.rows.append(named)

    def text(self) -> str:
        """Return the table as text of any width."""
        cells = [[_text(row.get(column)) for column in self.columns] for row in self.rows]
        lines = [self.title, *aligned([self.columns, *cells])]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Table:
        """Parse the output of :meth:`as_json`."""
        return cls(
            body["name"],
            body["title"],
            body["columns"],
            [{key: _cell(value) for key, value in row.items()} for row in body["rows"]],
            [Target.from_json(target) for target in body["targets"]],
            body["notes"],
        )

    def as_json(self) -> dict[str, Any]:
        """Return the table with every repeat's value."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": self.columns,
            "notes": self.notes,
            "rows": [{key: _json_cell(cell) for key, cell in row.items()} for row in self.rows],
            "targets": [target.as_json() for target in self.targets],
        }


def targets_text(tables: list[Table]) -> str:
    """Return all targets with their verdicts."""
    targets = [target.texts() for table in tables for target in table.targets]
    if not targets:
        return "no targets in these tables"
    return "\n".join(["Targets", *aligned([["target", "wanted", "measured", ""], *targets])])


def aligned(rows: list[list[str]]) -> list[str]:
    """Format rows as lines: the first column left, others right, a rule under the head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _json_cell(cell: Cell) -> Any:
    if isinstance(cell, Samples):
        return {
            "median": cell.median,
            "spread": cell.spread,
            "unit": cell.unit,
            "values": list(cell.values),
        }
    return cell


def _cell(value: Any) -> Cell:
    if isinstance(value, dict):
        return Samples(tuple(value["values"]), value["unit"])
    found: Cell = value
    return found
