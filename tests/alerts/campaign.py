"""Causes every fault at daemons, a few at a time, and prints the alerts: ``make alerts``.

    fault ─▶ exactly its alerts fire ─▶ an operator reads their entries, and types ─▶ healthy

Each fault is caused at a daemon without TLS and tokens and at one with them, at the same time.
Once the operator has followed the runbook, alarms clear by themselves and no alert fires.
"""

from __future__ import annotations

import argparse
import json
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.alerts.faults import FAULTS, Fault
from tests.alerts.operator import Operator
from tests.alerts.prometheus import program
from tests.alerts.recorded import Scrape, check_fired, scrape
from tests.alerts.site import Site
from tests.runbook.acting import RUNBOOK

AT_ONCE = 2
"""Faults in parallel: most of a fault is a wait, for a minute or until it is over."""


def try_fault(
    fault: Fault, folder: Path, *, secure: bool, waits: bool = True, checks: bool = True
) -> None:
    """Cause a fault at a daemon, and let an operator mend it by the runbook.

    Args:
        waits: For the daemon to notice the end of the fault.
        checks: By promtool, which alerts have fired.

    Raises:
        AssertionError: The fired alerts are not the fault's own, an entry does not print what it
            says, or something is wrong with the daemon afterwards.
    """
    site = Site(folder, secure=secure)
    stops = fault.run(site)
    page = RUNBOOK.read_text()
    try:
        scrapes: list[Scrape | None] = [scrape(next(stops)), scrape(next(stops))]
        with Operator(site, page) as operator:
            for entry, _ in fault.follows:
                operator.look(entry)
            for entry, cause in reversed(fault.follows):
                operator.help(entry, cause)
            if waits:
                http = next(stops)
                scrapes.append(scrape(http))
                check_healthy(http)
            else:
                scrapes.append(scrapes[0])
    finally:
        stops.close()
    if checks:
        check_fired(folder / "promtool", scrapes, ((), fault.alerts, ()))


def check_healthy(http: str | None) -> None:
    """Raise AssertionError unless a daemon is ready and has no alarms."""
    assert http is not None
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(http + "/health/ready", context=trusting, timeout=10) as answer:
        told = json.load(answer)
    assert told["ready"], told
    assert not told["alarms"], told


def both(fault: Fault, folder: Path) -> None:
    """Try a fault with TLS and tokens, and in parallel without, if possible; see `try_fault`."""
    ways = [True] if fault.secure else [True, False]
    with ThreadPoolExecutor(2) as pool:
        tried = [
            pool.submit(try_fault, fault, folder / str(secure), secure=secure) for secure in ways
        ]
    for each in tried:
        each.result()


def _tried(fault: Fault) -> tuple[Exception | None, float]:
    """Try a fault both ways; return the failures and the seconds it took."""
    began, error = time.monotonic(), None
    with tempfile.TemporaryDirectory(prefix="alerts-") as folder:
        try:
            both(fault, Path(folder))
        except Exception as exc:
            error = exc
    return error, time.monotonic() - began


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
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {pool.submit(_tried, FAULTS[name]): name for name in asked.faults or FAULTS}
        for each in as_completed(tried):
            error, seconds = each.result()
            fired = ", ".join(sorted(FAULTS[tried[each]].alerts))
            said = f"fired: {fired}" if error is None else f"FAILED: {error}"
            print(f"{tried[each]:20} {seconds:5.1f} s  {said}", flush=True)
            failed += [] if error is None else [tried[each]]
    told = f"{len(failed)} failed: {', '.join(failed)}"
    print(told if failed else "every fault fired its alerts, and was mended by the runbook")
    return bool(failed)
