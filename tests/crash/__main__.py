"""``python -m tests.crash``: run the long campaign and report its findings."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.crash.csv_source import Kills
from tests.crash.report import Extent, Report
from tests.crash.run import run
from tests.crash.worlds import no_small_disk

LONG = "disk,s3,cleaned,s3,disk,cleaned"
"""Worlds are renewed, because each check reads everything that was written so far."""


def main() -> int:
    """Return exit code 0 without findings, 1 otherwise."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    worlds = tuple(options.worlds.split(","))
    extent = Extent(
        options.seed, options.kills, options.seconds, worlds=worlds, spark=not options.no_spark
    )
    print(f"seed {extent.seed}: at least {extent.kills} kills", flush=True)
    if why := no_small_disk(folder):
        print(f"no disk will be full: {why}", flush=True)
    report = run(folder, extent)
    lines = "-"
    if options.source_kills and not report.findings.faults:
        source = Kills(folder / "source", extent.seed)
        for wrong in source.run(options.source_kills, lost_disks=options.source_kills // 17):
            report.findings.add(f"CSV source: {wrong}")
        lines = (
            f"{source.rows:,} of a CSV source, killed with its daemon: {_numbers(source.counts)}"
        )
    Console(width=100).print(table_of(report, extent, lines))
    for fault in report.findings.faults:
        print(f"FAULT {fault}")
    if report.findings.more:
        print(f"FAULT and {report.findings.more} more")
    if report.findings.faults:
        print(f"seed {extent.seed}; the daemon's folder, its log and the ledgers are in {folder}")
        return 1
    shutil.rmtree(folder)
    print("every acknowledged row is there exactly once, and no other")
    return 0


def table_of(report: Report, extent: Extent, lines: str) -> Table:
    """Return a table of a campaign's results; ``lines`` is the result of the CSV source."""
    table = Table(title=f"crash campaign, seed {extent.seed}", show_header=False)
    for name, value in (
        ("kills", f"{report.killed} ({_numbers(report.kills)})"),
        ("pauses, full disks, sick stores, clocks", _numbers(report.troubled)),
        ("the store's requests", _numbers(report.store_faults)),
        ("starts that a sick world refused", f"{report.refused_starts} {report.last_refusal}"),
        ("seconds", f"{report.seconds:.0f}"),
        ("restart to ready", _spread(report.restarts_s)),
        ("rows sent", f"{report.sent_rows:,}"),
        ("rows acknowledged", f"{report.acknowledged_rows:,} by {extent.writers} writers"),
        ("checks", f"{report.findings.checks} tables read, {report.findings.rows:,} rows"),
        ("check of all tables", _spread(report.checks_s)),
        ("files at the end", f"{report.files:,}"),
        *(("read at the end", f"{how}: {n:,} rows") for how, n in report.read_at_end.items()),
        *(("history", line) for line in report.history),
        ("lines", lines),
        ("faults", str(len(report.findings.faults) + report.findings.more)),
    ):
        table.add_row(name, value)
    return table


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items())) or "-"


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return f"median {median(seconds):.2f} s, longest {max(seconds):.2f} s"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--kills", type=int, default=300, help="at least so many (default 300)")
    parser.add_argument("--seconds", type=float, default=0.0, help="at least so long (default 0)")
    parser.add_argument("--worlds", default=LONG, help=f"one after the other (default {LONG})")
    parser.add_argument(
        "--source-kills", type=int, default=51, help="of a CSV source and its daemon (default 51)"
    )
    parser.add_argument("--no-spark", action="store_true", help="leave out the read with Spark")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
