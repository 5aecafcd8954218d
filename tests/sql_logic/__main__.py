"""``python -m tests.sql_logic``: SQL against DuckDB; exits with 1 if an answer differs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.sql_logic.campaign import Campaign, Plan
from tests.sql_logic.engines import DaemonEngine
from tests.sql_logic.suites import find_files, run_files

OWN = Path(__file__).parent / "suite"


def main() -> int:
    """Return exit code 0 if all answers are equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql_logic", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    about = "a folder of .test and .slt files; takes half of the time"
    parser.add_argument("--suite", type=Path, action="append", default=[], help=about)
    parser.add_argument("--flushes", type=int, default=5, help="flushes before the first query")
    parser.add_argument("--rows", type=int, default=6, help="rows of each of these flushes")
    parser.add_argument("--s3", action="store_true", help="keep files in a store of S3")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        daemon = stack.enter_context(_daemon(folder, stack, asked.s3))
        client = stack.enter_context(Client(daemon.flight))
        faults = run(asked, client)
    return 1 if faults else 0


def run(asked: argparse.Namespace, client: Client) -> int:
    """Run suites, then random queries with one seed after another; return the number of faults."""
    start = monotonic()
    files = find_files(asked.suite)
    Random(asked.seed).shuffle(files)
    share = 0.5 if files else 0.0
    report = run_files(
        [*find_files([OWN]), *files],
        client,
        lambda namespace: DaemonEngine(client, namespace),
        seed=asked.seed,
        until=start + max(10.0, share * asked.seconds),
    )
    skipped = [f"{count:8} {why}" for why, count in report.skipped.most_common()]
    print(dict(report.counts), *skipped, sep="\n")
    faults, seed = len(report.faults), asked.seed
    while (left := start + asked.seconds - monotonic()) > 0:
        plan = Plan(seed, min(left, 180.0), flushes=asked.flushes, rows=asked.rows)
        outcome = Campaign(plan, client).run()
        print(f"seed {seed}: {dict(outcome.counts)}", flush=True)
        faults, seed = faults + len(outcome.faults), seed + 1
    print(f"{faults} faults")
    return faults


def _daemon(folder: Path, stack: contextlib.ExitStack, s3: bool) -> Daemon:
    settings: dict[str, Any] = {
        "maintenance__compact": "true",
        "limits__tables": 1_000_000,
        "limits__namespaces": 1_000_000,
        "limits__daemon_partitions": 10_000_000,
    }
    if not s3:
        return Daemon.start(folder / "data", **settings)
    server = stack.enter_context(S3Server.start())
    server.make_bucket("lake")
    return Daemon.start(
        folder / "data", environment=server.environment, store="s3://lake/sql", **settings
    )


if __name__ == "__main__":
    sys.exit(main())
