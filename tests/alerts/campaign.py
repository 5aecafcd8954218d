"""Every fault befalls a daemon, one after another, and what fired is printed: ``make alerts``.

Each alert of an alarm has to fire by its fault, and no other alert may; when the fault is over,
none.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.alerts.faults import FAULTS, Fault
from tests.alerts.prometheus import program
from tests.alerts.recorded import Scrape, check_fired, scrape


def try_fault(fault: Fault, folder: Path, short: bool = False) -> None:
    """Have it befall a daemon. Raises AssertionError where alerts are others than its own.

    Args:
        short: not waited for is that the daemon notices the end of the fault.
    """
    stops = fault.run(folder)
    scrapes: list[Scrape | None] = []
    try:
        for http in stops:
            scrapes.append(scrape(http))
            if short and len(scrapes) == 2:
                scrapes.append(scrapes[0])
                break
    finally:
        stops.close()
    check_fired(folder, scrapes, ((), fault.alerts, ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(prog="make alerts", description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"some of {', '.join(FAULTS)}; default: all")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.faults) - set(FAULTS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    if program("promtool") is None:
        parser.error("no promtool here: `make prometheus` unpacks Debian's")
    failed = []
    for name, fault in FAULTS.items():
        if asked.faults and name not in asked.faults:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="alerts-") as folder:
            try:
                try_fault(fault, Path(folder))
                said = "fired: " + ", ".join(sorted(fault.alerts))
            except Exception as exc:
                failed.append(name)
                said = f"FAILED: {exc}"
        print(f"{name:20} {time.monotonic() - began:5.1f} s  {said}", flush=True)
    told = f"{len(failed)} failed: {', '.join(failed)}"
    print(told if failed else "every fault fired its alerts, and no other")
    return bool(failed)
