"""``python -m tests.simulation``: up to 1,000 daemons that commit to one table, in minutes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulation.costs import count_requests
from tests.simulation.daemons import at_once, spread
from tests.simulation.report import contention_table, cost_table, draw, where_it_ends

DAEMONS = (1, 2, 5, 10, 30, 100, 300, 1000)


def main() -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--daemons", type=int, nargs="+", default=list(DAEMONS))
    parser.add_argument("--every", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--together", type=int, default=300, help="the most that commit at once")
    parser.add_argument("--picture", type=Path, help="a PNG of the curves")
    asked = parser.parse_args()
    apart, together = [], []
    for daemons in asked.daemons:
        print(f"{daemons:,} daemons", file=sys.stderr)
        apart.append(spread(daemons, every_s=asked.every))
        if daemons <= asked.together:
            together.append(at_once(daemons))
    every = f"each {asked.every:g} s, at times of their own"
    print(contention_table("spread", f"Each daemon commits {every}", apart).text(), end="\n\n")
    print(contention_table("at-once", "All commit once, at once", together).text(), end="\n\n")
    print(cost_table(count_requests()).text(), end="\n\n")
    print(where_it_ends(apart, every_s=asked.every))
    if asked.picture is not None:
        draw(apart, together, asked.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
