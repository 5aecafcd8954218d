"""``python -m tests.stalled``: the full measurement, as a table next to its targets."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.stalled.run import Extent, Report, Run

MB = 1_000_000
MAX_GROWTH_MB = 150
MIN_RATE_KEPT = 0.5


def main() -> int:
    """Return exit code 0 if every target is met, 1 otherwise."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="stalled-"))
    extent = Extent(
        options.readers,
        options.processes,
        options.megabytes,
        go_on=options.go_on,
        at_once=options.at_once,
    )
    report = Run(folder, extent).run()
    console = Console(width=100)
    console.print(phases_of(report))
    console.print(targets_of(report))
    for fault in report.faults:
        print(f"FAULT {fault}")
    shutil.rmtree(folder)
    return 0 if met(report) else 1


def met(report: Report) -> bool:
    """Whether all targets are met."""
    return (
        not report.faults
        and report.growth <= MAX_GROWTH_MB * MB
        and report.rate_kept >= MIN_RATE_KEPT
    )


def phases_of(report: Report) -> Table:
    """A table of memory and writers by phase."""
    table = Table("phase", "s", "RSS peak MB", "anonymous", "threads", "batches/s")
    before = report.before
    first = (f"{before[name] / MB:.0f}" for name in ("VmRSS", "RssAnon"))
    table.add_row("before", "", *first, str(before["Threads"]), f"{report.rate_before:.0f}")
    for phase, peak in report.peaks.items():
        table.add_row(
            phase,
            f"{report.seconds[phase]:.1f}" if phase in report.seconds else "",
            f"{peak['VmRSS'] / MB:.0f}",
            f"{peak['RssAnon'] / MB:.0f}",
            str(peak["Threads"]),
            f"{report.rates[phase]:.0f}" if phase in report.rates else "",
        )
    return table


def targets_of(report: Report) -> Table:
    """A table of targets and measurements."""
    table = Table("what", "target", "measured", "")
    exact = sum(1 for answer in report.answers if answer["prefixes"] and not answer["error"])
    for what, target, measured, reached in (
        (
            "resident memory grows by",
            f"at most {MAX_GROWTH_MB} MB",
            f"{report.growth / MB:.0f} MB",
            report.growth <= MAX_GROWTH_MB * MB,
        ),
        (
            "writers keep of their rate",
            f"at least {MIN_RATE_KEPT:.2f}",
            f"{report.rate_kept:.2f} (longest gap {report.slowest_s:.1f} s)",
            report.rate_kept >= MIN_RATE_KEPT,
        ),
        (
            "readers that go on get the rest",
            "all",
            f"{exact} of {len(report.answers)}",
            not report.faults,
        ),
    ):
        table.add_row(what, target, measured, "met" if reached else "missed")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stalled", description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--go-on", type=int, default=1, help="readers of each process that go on")
    parser.add_argument(
        "--at-once", action="store_true", help="persist before the clients' own read-ahead has come"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
