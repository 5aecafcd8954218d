"""``python -m tests.bench [--full] [TABLE …]``: measure, print, write JSON and pictures.

Without names a quick run measures the main paths, a full run every table. ``--show FILE`` prints a
run's tables again; files of several runs are refused. Tables go to standard output, progress to
standard error. The exit code says whether the program ran, not whether targets were met: a busy
machine is not a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.effort import FORMS
from tests.bench.report import targets_text
from tests.bench.results import DifferentConditions, read_run
from tests.bench.running import QUICK, TABLES, run_tables


def main(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help=f"of {', '.join(TABLES)}; by default {', '.join(QUICK)}",
    )
    parser.add_argument(
        "--full", action="store_true", help="every table, longer, with more repeats"
    )
    parser.add_argument("--form", choices=list(FORMS), help="instead of --full")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="results and data")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print a run again")
    options = parser.parse_args(arguments)
    if options.show:
        return _show(parser, options.show)
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"unknown table {', '.join(unknown)}; the tables are {', '.join(TABLES)}")
    form = options.form or ("full" if options.full else "quick")
    wanted = options.tables or (QUICK if form == "quick" else TABLES)
    path = run_tables(
        [name for name in TABLES if name in wanted],
        form,
        options.out,
        show=lambda text: print(text, flush=True),
        say=_progress,
    )
    print(path)
    return 0


def _show(parser: argparse.ArgumentParser, paths: list[Path]) -> int:
    try:
        run = read_run(paths)
    except (DifferentConditions, ValueError, OSError) as exc:
        parser.error(str(exc))
    print(" ".join(f"{key}={value}" for key, value in run.machine.items()), end="\n\n")
    for table in run.tables:
        print(table.text(), end="\n\n")
    print(targets_text(run.tables))
    return 0


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
