"""Reading a DuckDB file that a follower writes to.

Law of this file: a reader waits for the follower and not the other way round: the follower has the
file for some milliseconds at a time, and cannot write as long as a reader has it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from os import PathLike, fspath
from typing import TYPE_CHECKING

from ingester.client.errors import TimedOut
from ingester.followers.duckdb_file import turn_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PAUSE_S = 0.005
"""The pause between two attempts: no longer than the follower leaves the file alone."""


def open_copy(path: str | PathLike[str], wait_s: float = 10.0) -> DuckDBPyConnection:
    """A read-only connection to a copy, once the follower lets it be opened; close it soon.

    What it reads is the state of one moment, however long it is open; the follower waits meanwhile
    and catches up afterwards.

    Raises:
        TimedOut: the file was not free within ``wait_s``, as in a first fill.
        duckdb.IOException: there is no such file, or it is none of DuckDB's.
    """
    import duckdb

    name, deadline = fspath(path), time.monotonic() + wait_s
    while True:
        try:
            with _turn(name, deadline):
                return duckdb.connect(name, read_only=True)
        except (duckdb.Error, TimedOut) as exc:
            if not any(text in str(exc) for text in _HELD):
                raise
            if time.monotonic() > deadline:
                raise TimedOut(f"{name} was not free within {wait_s:g} s: {exc}") from exc
        time.sleep(PAUSE_S)


_HELD = ("set lock on file", "already attached", "another thread")


@contextlib.contextmanager
def _turn(name: str, deadline: float) -> Iterator[None]:
    """Keep a follower in this very process from attaching the file meanwhile."""
    turn = turn_of(name)
    if turn is None:
        yield
        return
    if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise TimedOut("a follower in another thread writes to it")
    try:
        yield
    finally:
        turn.release()
