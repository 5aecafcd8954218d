"""The demo's result: a struct for ``--json``, and tables for people."""

import msgspec
from rich.console import Console
from rich.table import Table

from .totals import Totals

# The table shows these; all totals are compared.
SHOWN_TOTALS = (
    "rows",
    "sum(distance)",
    "sum(dep_delay)",
    "nulls(dep_delay)",
    "sum(arr_delay)",
    "nulls(arr_delay)",
    "length(tailnum)",
)


class TableResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one table. Latencies are from sending a batch to its acknowledgement."""

    table: str
    partition_by: str
    rows_acknowledged: int
    rows_in_buffer: int
    rows_in_files: int
    files: int
    rows_per_s: float
    acknowledged_p50_ms: float
    acknowledged_p99_ms: float
    spark: Totals = {}


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's result; ``disagreements`` is empty if all numbers agree."""

    seconds: float
    rows_per_s: float
    tables: list[TableResult]
    source: Totals
    disagreements: list[str]


def uncounted(table: TableResult, rows: int) -> list[str]:
    """One sentence per count of the daemon that is not as expected after persisting ``rows``."""
    counts = {
        "rows acknowledged": (table.rows_acknowledged, rows),
        "rows in files": (table.rows_in_files, rows),
        "rows in buffer": (table.rows_in_buffer, 0),
    }
    return [
        f"{table.table}: {found} {what}; expected {expected}"
        for what, (found, expected) in counts.items()
        if found != expected
    ]


def show(result: DemoResult, console: Console) -> None:
    """Print the tables, then the verdict or one line per disagreement."""
    console.print(_facts(result.tables))
    console.print(_totals(result))
    if result.disagreements:
        for sentence in result.disagreements:
            console.print(f"DISAGREEMENT: {sentence}", style="bold red", soft_wrap=True)
        return
    console.print(
        f"All {len(result.source)} totals over every column agree in both tables. "
        f"{sum(each.rows_acknowledged for each in result.tables):,} rows acknowledged at "
        f"{result.rows_per_s:,.0f} rows/s in both together; {result.seconds:.0f} s in all.",
        style="green",
        soft_wrap=True,
    )


def _facts(tables: list[TableResult]) -> Table:
    shown = Table(title="at the daemon", title_justify="left")
    shown.add_column()
    for each in tables:
        shown.add_column(each.table, justify="right")
    lines = {
        "partitioned by": [each.partition_by for each in tables],
        "rows acknowledged": [f"{each.rows_acknowledged:,}" for each in tables],
        "rows in buffer": [f"{each.rows_in_buffer:,}" for each in tables],
        "rows in files": [f"{each.rows_in_files:,}" for each in tables],
        "files": [f"{each.files:,}" for each in tables],
        "rows per second": [f"{each.rows_per_s:,.0f}" for each in tables],
        "batch acknowledged, p50": [f"{each.acknowledged_p50_ms:.1f} ms" for each in tables],
        "batch acknowledged, p99": [f"{each.acknowledged_p99_ms:.1f} ms" for each in tables],
    }
    for name, values in lines.items():
        shown.add_row(name, *values)
    return shown


def _totals(result: DemoResult) -> Table:
    shown = Table(title="in the source and in Spark", title_justify="left")
    shown.add_column()
    shown.add_column("source", justify="right")
    for each in result.tables:
        shown.add_column(f"Spark, {each.table.removeprefix('flights_')}", justify="right")
    for name in SHOWN_TOTALS:
        spark = [each.spark.get(name) for each in result.tables]
        cells = ["missing" if value is None else f"{value:,}" for value in spark]
        shown.add_row(name, f"{result.source[name]:,}", *cells)
    return shown
