"""``python -m tests.show``: an hour of three daemons, a load, and a fault each minute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.show.campaign import Plan, run
from tests.show.faults import FAULTS
from tests.show.picture import draw


def main() -> int:
    """Return exit code 0 if no row was lost and no client saw an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.show", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--share", type=float, default=0.8, help="of what the machine takes")
    parser.add_argument("--upkeep", type=float, default=300.0, help="seconds between compactions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", choices=[*FAULTS], help="only these")
    parser.add_argument("--picture", type=Path, help="a PNG")
    asked = parser.parse_args()
    plan = Plan(
        seconds=asked.seconds,
        every_s=asked.every,
        full_s=min(30.0, asked.seconds / 12),
        share=asked.share,
        upkeep_s=asked.upkeep,
        seed=asked.seed,
        faults=tuple(asked.fault or FAULTS),
    )
    verdict = run(plan, lambda text: print(text, flush=True))
    print("\n".join(verdict.lines))
    print("\n".join([f"FAULT: {text}" for text in verdict.faults] or ["nothing was lost"]))
    if asked.picture is not None and verdict.load is not None:
        draw(verdict.watch, verdict.load.writes, verdict.load.queries, asked.picture)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
