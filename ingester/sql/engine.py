"""SQL queries: what protocols call. Every call blocks and may come from any thread.

statement ─▶ a worker process ─▶ which tables? ─▶ one snapshot of them ─▶ batches
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ingester.errors import NotAvailable
from ingester.observability.status import SqlStatus
from ingester.sql.request import Statement


@dataclass(frozen=True, slots=True)
class SqlCaller:
    """Who asks.

    Attributes:
        may_read: returns whether the caller may read a namespace. Tables of others do not exist.
        check_wanted: raises ClientGone if the caller has disconnected; asked ten times a second.
        name: the caller's name, for status and log.
        authorization: its ``authorization`` header, for peers; empty without one.
    """

    may_read: Callable[[str], bool]
    check_wanted: Callable[[], None] = lambda: None
    name: str = "-"
    authorization: str = ""


class Described(NamedTuple):
    """The columns of a statement's answer, and its parameters (type null where unknown)."""

    schema: pa.Schema
    parameters: pa.Schema


class SqlAnswer:
    """One answer. Iterate once; closing, or dropping it, ends the query."""

    query_id: str
    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            BadRequest: the query failed, or exceeded a limit of ``[sql]``.
            TooSlow: it took longer than ``sql.max_time``.
            ClientGone: the caller has disconnected.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the query. Thread-safe and idempotent."""


class SqlEngine:
    """Runs SQL queries of one daemon."""

    def describe(self, statement: Statement, caller: SqlCaller) -> Described:
        """Return the schema of a statement's answer without running it.

        Raises:
            BadRequest: invalid SQL, an unknown table or column.
            NotAvailable: the extra ``sql`` is not installed, or ``sql.enabled`` is false.
            TooManyStreams: all workers are busy.
        """
        raise NotAvailable("SQL is not available")

    def run(
        self, statement: Statement, caller: SqlCaller, query_id: str | None = None
    ) -> SqlAnswer:
        """Start a query and return its answer once the schema is known.

        Args:
            query_id: a name for :meth:`cancel`; made up by default.

        Raises:
            as :meth:`describe`
        """
        raise NotAvailable("SQL is not available")

    def cancel(self, query_id: str) -> bool:
        """End a query from any thread; return whether it was running."""
        return False

    def statistics(self) -> SqlStatus:
        """Return the numbers of queries and workers. Does not block."""
        return SqlStatus()
