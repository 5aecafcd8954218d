"""The results of the simulation: tables, a picture, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.bench.report import Cell, Table
from tests.simulation.costs import Cost
from tests.simulation.daemons import Contention
from tests.simulation.store import Prices

DEFAULT_PRICES = Prices()
MONTH_S = 30 * 86_400.0
LATE_S = 60.0
"""A longer commit delays the release of memory and of log segments."""


def contention_table(
    name: str, title: str, found: Sequence[Contention], prices: Prices = DEFAULT_PRICES
) -> Table:
    """One row for each number of daemons."""
    table = Table(
        name,
        title,
        ["daemons", "commits/s", "attempts", "requests", "$/1,000 commits", "median s", "99th s",
         "longest s"],
    )  # fmt: skip
    for each in found:
        row: dict[str, Cell] = {
            "daemons": each.daemons,
            "commits/s": f"{each.rate:.2f}",
            "attempts": f"{each.attempts:.1f}",
            "requests": f"{each.requests_each:.0f}",
            "$/1,000 commits": f"{1000 * each.dollars_each(prices):.3f}",
            "median s": f"{each.quantile(0.5):.2f}",
            "99th s": f"{each.quantile(0.99):.2f}",
            "longest s": f"{max(each.commits_s):.2f}",
        }
        table.rows.append(row)
    return table


def cost_table(costs: Sequence[Cost], prices: Prices) -> Table:
    """A table of requests other than commits, by the code that makes them."""
    columns = ["what", "GET", "PUT", "LIST", "$/month at one a second"]
    table = Table("requests", "Requests of one table's manifest, counted", columns)
    for each in costs:
        requests = each.requests
        table.rows.append(
            {
                "what": each.what,
                "GET": requests["get"],
                "PUT": requests.total() - requests["get"] - requests["list"],
                "LIST": requests["list"],
                "$/month at one a second": f"{each.dollars(prices) * MONTH_S:.2f}",
            }
        )
    return table


def where_it_ends(found: Sequence[Contention], *, every_s: float) -> str:
    """One sentence: the most daemons that one table supports at this pace, or the limiting cost."""
    good = [each for each in found if each.quantile(0.99) <= LATE_S]
    late = [each for each in found if each.quantile(0.99) > LATE_S]
    most = max((each.daemons for each in good), default=0)
    text = f"one commit of a daemon each {every_s:g} s: {most:,} daemons commit within {LATE_S:g} s"
    if late:
        text += f"; of {late[0].daemons:,} one in a hundred waits {late[0].quantile(0.99):.0f} s"
    return text


def draw(spread: Sequence[Contention], at_once: Sequence[Contention], path: Path) -> None:
    """Draw curves over the number of daemons: the duration and the price of a commit."""
    figure = Figure(figsize=(9.0, 3.6))
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, found, mark in (("spread", spread, "o-"), ("all at once", at_once, "s--")):
        daemons = [each.daemons for each in found]
        left.plot(daemons, [each.quantile(0.5) for each in found], mark, label=f"{name}, median")
        left.plot(daemons, [each.quantile(0.99) for each in found], mark, label=f"{name}, 99th")
        right.plot(daemons, [each.requests_each for each in found], mark, label=name)
    for axes, title in ((left, "seconds for a commit"), (right, "requests for a commit")):
        axes.set(xscale="log", yscale="log", xlabel="daemons of one table", title=title)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
