"""The common parts of all faults: steps, writes, and the wait for the daemon's alarms.

A fault is a generator that yields three times: before it, during it, and after it. Each time it
yields the address of the daemon to scrape, or None if there is none. It yields once the daemon
itself has noticed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.alerts.recorded import scrape
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, put

Stops = Generator[str | None, None, None]
Settings = dict[str, Any]
WRITTEN = ("shop", "sales")
"""The table that rows are written to."""


def raised(daemon: Daemon, *alarms: str, is_up: bool = True) -> None:
    """Wait until the daemon reports these alarms, or none of them."""

    def told() -> bool:
        found = scrape(daemon.http) or {}
        values = [found.get(("ingester_alarm", (("alarm", name),))) for name in alarms]
        return values == [float(is_up)] * len(alarms)

    until(told, f"alarms {alarms} to be {'raised' if is_up else 'over'}", 120.0)


def raised_and_cleared(daemon: Daemon, *alarms: str) -> Stops:
    """Yield when the daemon reports these alarms, and again when it reports none of them."""
    raised(daemon, *alarms)
    yield daemon.http
    raised(daemon, *alarms, is_up=False)
    yield daemon.http


def refused(client: fl.FlightClient, table: tuple[str, str], batch: pa.RecordBatch) -> None:
    """Write until a batch is refused."""
    for _ in range(10_000):
        try:
            put(client, table, batch)
        except ARROW_AND_FLIGHT:
            return
    raise AssertionError("nothing was refused")
