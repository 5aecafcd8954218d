"""Questions in SQL to a daemon, and the worker processes that answer them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ingester.client import Client
from tests.bench.requests import NAMESPACE
from tests.bench.sql.plain_duckdb import Answered
from tests.drivers.daemon import Daemon

_QUIET_S = 0.05
_GIVE_UP_S = 60.0


class Asker:
    """A client of a daemon with its defaults; use it in ``with``."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = Client(daemon.flight)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, query: str) -> Answered:
        """Run a query and return its duration, from the call to the whole answer."""
        began = time.perf_counter()
        table = self._client.sql(query, namespace=NAMESPACE)
        return Answered(time.perf_counter() - began, table.num_rows)


def workers(daemon: Daemon) -> list[int]:
    """Return the daemon's child processes, which run its SQL queries."""
    found: list[int] = []
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def is_busy(pid: int) -> bool:
    """Return whether a thread of a process is running; not if the process has ended."""
    try:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "R" in states


def wait_until(condition: Callable[[], bool]) -> None:
    """Look every ten milliseconds until a condition holds.

    Raises:
        AssertionError: It does not hold for a minute.
    """
    give_up_at = time.monotonic() + _GIVE_UP_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise AssertionError("a condition that was waited for did not come true")
        time.sleep(0.01)


def last_busy(pids: list[int]) -> float:
    """Wait until processes rest or have ended; return when one of them was last seen running."""
    last = began = time.monotonic()
    while (now := time.monotonic()) < last + _QUIET_S:
        if any(map(is_busy, pids)):
            last = now
        if now > began + _GIVE_UP_S:
            raise AssertionError("a query still runs without its client")
        time.sleep(0.001)
    return last
