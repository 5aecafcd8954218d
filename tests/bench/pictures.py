"""A table as a picture: bars of medians with their spread, one panel for each unit.

A picture shows only what the table contains; rows are labelled by their cells without
measurements. Ratios, times and rates never share a panel. Values that span more than two orders
of magnitude get a logarithmic axis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tests.bench.report import Cell, Table
from tests.bench.samples import Samples, formatted

_UNITS = {"/s": "per second", "s": "time", "x": "ratio", "B": "bytes", "B/s": "bytes per second"}
_BAR_INCHES = 0.2
_LOGARITHMIC_FROM = 100.0


def draw(table: Table, path: Path) -> bool:
    """Write a PNG of the table; return False, without a file, if it has no measurements."""
    panels = _panels(table)
    if not panels:
        return False
    heights = [max(1, len(table.rows)) * (len(columns) + 1) for columns in panels.values()]
    figure = Figure(figsize=(9.0, _BAR_INCHES * sum(heights) + 1.3 * len(panels)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    labels = [_label(table, row) for row in table.rows]
    for panel, (unit, columns) in zip(axes, panels.items(), strict=True):
        _draw_panel(panel, table, unit, columns, labels)
    # Not the figure's title, which overlaps the first panel of a tall picture.
    axes[0].set_title(table.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return True


def _panels(table: Table) -> dict[str, list[str]]:
    """Return the columns of each unit, in the table's order."""
    panels: dict[str, list[str]] = {}
    for column in table.columns:
        units = {cell.unit for row in table.rows if isinstance(cell := row.get(column), Samples)}
        for unit in units:
            panels.setdefault(unit, []).append(column)
    return panels


def _label(table: Table, row: dict[str, Cell]) -> str:
    cells = [(column, row.get(column)) for column in table.columns]
    texts = [
        f"{cell:,} {column}" if isinstance(cell, int) else str(cell)
        for column, cell in cells
        if cell is not None and not isinstance(cell, Samples)
    ]
    return ", ".join(texts)


def _draw_panel(
    panel: Axes, table: Table, unit: str, columns: list[str], labels: list[str]
) -> None:
    places = np.arange(len(table.rows)) * (len(columns) + 1)
    drawn: list[float] = []
    for number, column in enumerate(columns):
        cells = [row.get(column) for row in table.rows]
        found = [
            cell if isinstance(cell, Samples) and cell.unit == unit else None for cell in cells
        ]
        medians = [cell.median if cell else 0.0 for cell in found]
        below = [cell.median - min(cell.values) if cell else 0.0 for cell in found]
        above = [max(cell.values) - cell.median if cell else 0.0 for cell in found]
        drawn += [median for median in medians if median > 0]
        panel.barh(
            places + number,
            medians,
            xerr=(below, above),
            label=column,
            error_kw={"linewidth": 0.7},
        )
    panel.set_yticks(places + (len(columns) - 1) / 2, labels, fontsize=7)
    panel.invert_yaxis()
    if drawn and max(drawn) / min(drawn) > _LOGARITHMIC_FROM:
        panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, unit)))
    panel.tick_params(axis="x", labelsize=7)
    panel.set_xlabel(_UNITS.get(unit, unit), fontsize=8)
    panel.legend(fontsize=7)
