"""``python -m tests.postgres.storm``: a storm at a real source; exits with 1 on a wrong copy."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.postgres.cluster import serve
from tests.postgres.storm.campaign import PUBLICATIONS, Fault, Plan, Storm


def main() -> int:
    """Return the exit code: 0 if every copy was equal or set aside with a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--round", type=float, default=30.0, help="seconds of one; %(default)s")
    parser.add_argument("--pause", type=float, default=0.05, help="between steps; %(default)s s")
    parser.add_argument("--version", help="of PostgreSQL; default: Debian's")
    parser.add_argument(
        "--publication",
        type=int,
        choices=range(len(PUBLICATIONS)),
        help="0: its own, 1: of all tables by roots, 2: of all tables; default: by the seed",
    )
    asked = parser.parse_args()
    publication = asked.publication
    if publication is None:
        publication = asked.seed % len(PUBLICATIONS)
    plan = Plan(
        asked.seconds,
        asked.seed,
        asked.kills,
        asked.sessions,
        asked.round,
        asked.pause,
        publication,
    )
    with tempfile.TemporaryDirectory() as name, serve(Path(name), asked.version) as cluster:
        print(plan, flush=True)
        try:
            with Storm(plan, cluster, Path(name), lambda text: print(text, flush=True)) as storm:
                report = storm.run()
        except Fault as exc:
            print(f"FAULT: {exc}", flush=True)
            return 1
    print(f"{report.steps} steps, killed: {dict(report.kills)}")
    print(f"outcomes: {dict(report.outcomes)}")
    print("no table is silently different")
    return 0


if __name__ == "__main__":
    sys.exit(main())
