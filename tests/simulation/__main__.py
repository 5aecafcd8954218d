"""``python -m tests.simulation``: up to 1,000 daemons that commit to one table, in minutes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulation.costs import count_requests
from tests.simulation.daemons import at_once, spread
from tests.simulation.report import contention_table, cost_table, draw, where_it_ends
from tests.simulation.store import Prices
from tests.simulation.store_log import INTERVALS_S, WRITINGS, count_log_requests, log_table

DAEMONS = (1, 2, 5, 10, 30, 100, 300, 1000)


def main() -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--daemons", type=int, nargs="+", default=list(DAEMONS))
    parser.add_argument("--every", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--together", type=int, default=300, help="the most that commit at once")
    parser.add_argument("--writes", type=float, default=Prices().writes, help="$ for 1,000 PUT")
    parser.add_argument("--reads", type=float, default=Prices().reads, help="$ for 1,000 GET")
    parser.add_argument("--picture", type=Path, help="a PNG of the curves")
    asked = parser.parse_args()
    prices = Prices(asked.writes, asked.reads)
    print("the log in the store", file=sys.stderr)
    logs = [count_log_requests(each, interval) for each in WRITINGS for interval in INTERVALS_S]
    print(log_table(logs, prices).text(), end="\n\n", flush=True)
    apart, together = [], []
    for daemons in asked.daemons:
        print(f"{daemons:,} daemons", file=sys.stderr)
        apart.append(spread(daemons, every_s=asked.every))
        if daemons <= asked.together:
            together.append(at_once(daemons))
    every = f"each {asked.every:g} s, at times of their own"
    for table in (
        contention_table("spread", f"Each daemon commits {every}", apart, prices),
        contention_table("at-once", "All commit once, at once", together, prices),
        cost_table(count_requests(), prices),
    ):
        print(table.text(), end="\n\n")
    print(where_it_ends(apart, every_s=asked.every))
    if asked.picture is not None:
        draw(apart, together, asked.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
