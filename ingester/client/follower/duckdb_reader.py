"""Reading a DuckDB file that a follower writes to.

Law of this file: a reader waits for the follower and not the other way round: the follower has the
file for some milliseconds at a time, and cannot write as long as a reader has it.
"""

from __future__ import annotations

import time
from os import PathLike, fspath
from typing import TYPE_CHECKING

from ingester.client.errors import TimedOut

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

    deadline = time.monotonic() + wait_s
    while True:
        try:
            return duckdb.connect(fspath(path), read_only=True)
        except duckdb.IOException as exc:
            if "set lock on file" not in str(exc):
                raise
            if time.monotonic() > deadline:
                raise TimedOut(f"{fspath(path)} was not free within {wait_s:g} s: {exc}") from exc
        time.sleep(PAUSE_S)
