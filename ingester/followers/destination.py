"""Where copies go, as a user says it: ``duckdb:FILE``, ``parquet:FOLDER``, ``python:MODULE:CLASS``.

Law of this file: opening a destination refuses what it can refuse, and leaves nothing half made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ingester.client.errors import InvalidRequest
from ingester.followers.duckdb_sink import DuckDBDatabase
from ingester.followers.parquet_sink import ParquetFolder
from ingester.followers.sink import FollowedTable, FollowerSink
from ingester.followers.user_class import sink_class


class Destination(Protocol):
    """Makes the sink of each table."""

    def sink(self, table: FollowedTable) -> FollowerSink:
        """The sink of a table."""

    def close(self) -> None:
        """Let go of what the sinks share; also while one waits for it."""


class _UserClass:
    """A destination of a user's class, whose sinks share nothing."""

    def __init__(self, name: str) -> None:
        self._make = sink_class(name)

    def sink(self, table: FollowedTable) -> FollowerSink:
        return self._make(table)

    def close(self) -> None:
        """Do nothing."""


def open_destination(text: str, locked: Callable[[str], None] = lambda holder: None) -> Destination:
    """The destination that a text names.

    Args:
        locked: is told who has a file open, once for each time that it has to be waited for.

    Raises:
        InvalidRequest: no such kind, or what is there cannot be written to.
    """
    kind, colon, rest = text.partition(":")
    if not (colon and rest) or kind not in ("duckdb", "parquet", "python"):
        raise InvalidRequest(
            f"{text!r} names no place for copies: duckdb:FILE, parquet:FOLDER or"
            " python:package.module:Class"
        )
    if kind == "duckdb":
        return DuckDBDatabase(Path(rest), locked)
    return ParquetFolder(Path(rest)) if kind == "parquet" else _UserClass(rest)
