"""``python -m tests.lost_machine``: lose many machines and report what was found."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.drivers.daemon import Launch
from tests.lost_machine.report import Extent, Report
from tests.lost_machine.run import run

PLACES = "file,s3,file,s3"
"""Places are renewed, because each check reads everything that was written so far."""


def main() -> int:
    """Return exit code 0 without findings, 1 otherwise."""
    options = _options()
    Launch.warm = True
    folder = Path(tempfile.mkdtemp(prefix="lost-machine-", dir=options.folder))
    extent = Extent(options.seed, options.losses, spark=not options.without_spark)
    print(f"seed {extent.seed}: at least {extent.losses} losses", flush=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        if options.verbose:
            print(f"{time.monotonic() - began:.0f} s, {text}", flush=True)

    with _quiet(folder / "clients.stderr"):
        report = run(folder / "campaigns", extent, tuple(options.places.split(",")), tell)
    Console(width=100).print(table_of(report, extent, time.monotonic() - began))
    for fault in report.findings.faults:
        print(f"FAULT {fault}")
    if report.findings.faults:
        print(f"seed {extent.seed}, and {report.findings.more} more; all is in {folder}")
        return 1
    shutil.rmtree(folder)
    print("every row acknowledged at store is there exactly once")
    return 0


class _quiet:
    """Sends the C++ client's lines about lost connections to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._stderr = os.dup(2)
        with self._path.open("wb") as file:
            os.dup2(file.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._stderr, 2)
        os.close(self._stderr)


def table_of(report: Report, extent: Extent, seconds: float) -> Table:
    """Return a table of the results."""
    table = Table(title=f"lost machines, seed {extent.seed}", show_header=False)
    for name, value in (
        ("lost machines", f"{report.lost} ({_numbers(report.losses)})"),
        ("processes", _numbers(report.counts)),
        ("refusals", _numbers(report.refusals)),
        ("start to ready", _times(report.restarts_s)),
        ("adoption", _times(report.adoptions_s)),
        ("adoption by daemons", _times(report.waits_s)),
        ("reads tried again", _numbers(report.reads_again)),
        ("rows acknowledged", f"{report.acknowledged_rows:,} at store"),
        ("checks", f"{report.findings.checks} tables read, {report.findings.rows:,} rows"),
        *(("read at the end", f"{how}: {n:,} rows") for how, n in report.read_at_end.items()),
        *(("history", verdict) for verdict in report.verdicts),
        ("seconds", f"{seconds:.0f}"),
        ("faults", str(len(report.findings.faults) + report.findings.more)),
    ):
        table.add_row(name, value)
    return table


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{len(seconds)}, median {median(seconds):.2f} s, longest {max(seconds):.2f} s"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items())) or "-"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lost_machine", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--losses", type=int, default=100, help="at least this many (default 100)")
    parser.add_argument("--places", default=PLACES, help=f"one after the other (default {PLACES})")
    parser.add_argument("--without-spark", action="store_true", help="needs half the time")
    parser.add_argument("--folder", help="where the evidence is kept")
    parser.add_argument("--verbose", action="store_true", help="tell each loss")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
