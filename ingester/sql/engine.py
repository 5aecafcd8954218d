"""SQL queries: what protocols call. Every call blocks and may come from any thread.

statement ─▶ a worker process ─▶ which tables? ─▶ one snapshot of them ─▶ batches
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NamedTuple

import pyarrow as pa
import trio

from ingester.config.settings import SqlSettings
from ingester.errors import (
    BadRequest,
    ClientGone,
    NotAvailable,
    Stopping,
    TooManyStreams,
    TooSlow,
    limit_facts,
)
from ingester.observability.status import SqlStatus
from ingester.query.stream import AnswerPlaces
from ingester.sql.answer import QueryRules, RunningQuery, parameters_of, schema_of
from ingester.sql.processes import Workers
from ingester.sql.request import Statement, checked
from ingester.sql.tables import Asked, QueryTables, TableFinder
from ingester.sql.wire import Names, WorkerLimits


@dataclass(frozen=True, slots=True)
class SqlCaller:
    """The caller of a query.

    Attributes:
        may_read: returns whether the caller may read a namespace. Tables of others do not exist.
        check_wanted: raises ClientGone if the caller has disconnected; asked ten times a second.
        authorization: its ``authorization`` header, for peers; empty without one.
    """

    may_read: Callable[[str], bool]
    check_wanted: Callable[[], None] = lambda: None
    authorization: str = ""


class Described(NamedTuple):
    """The columns of a statement's answer, and its parameters (type null where unknown).

    A parameter has the type of a cast or of the column beside it, also if its value has another.
    """

    schema: pa.Schema
    parameters: pa.Schema


class SqlAnswer:
    """One answer. Iterate once; closing, or dropping it, ends the query."""

    def __init__(
        self, query_id: str, schema: pa.Schema, query: RunningQuery, on_close: Callable[[], None]
    ) -> None:
        self.query_id = query_id
        self.schema = schema
        self._query = query
        self.daemons: list[str] = []
        """The ids of the daemons whose buffered rows are in it."""
        self.missing: list[str] = []
        """The addresses of unreachable peers, whose buffered rows are not."""
        self._on_close = on_close
        self._lock = threading.RLock()
        self._closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            BadRequest: the query failed, or exceeded a limit of ``[sql]``.
            TooSlow: it took longer than ``sql.max_time``.
            ClientGone: the caller has disconnected.
        """
        try:
            yield from self._query.batches(self.schema)
        finally:
            self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the query. Not while another thread iterates; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._query.close()
        self._on_close()


@dataclass(frozen=True, slots=True)
class SqlParts:
    """The parts of a daemon that queries need.

    Attributes:
        ingester_id: the daemon.
        finder: finds tables and takes snapshots.
        places: gives each query a place for each namespace that it reads, so that quotas hold and
            a stop waits for its answer.
        request: counts a query in the quotas of a namespace.
        spill_folder: a folder of the data directory that is deleted at the start.
        secrets: see :class:`QueryRules`.
        ended: receives the seconds of each query that has ended.
    """

    ingester_id: str
    finder: TableFinder
    places: AnswerPlaces
    request: Callable[[str], None]
    spill_folder: str
    secrets: tuple[str, ...]
    ended: Callable[[float], object]


@dataclass(slots=True)
class _Running:
    query: RunningQuery
    allows_missing: bool
    answer: weakref.ref[SqlAnswer] | None = None
    """Weak: a dropped answer ends its query."""
    cancelled: bool = False
    namespaces: set[str] = field(default_factory=set)
    places: list[str] = field(default_factory=list)
    """The namespaces whose places it has."""
    daemons: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


class SqlEngine:
    """Runs SQL queries of one daemon."""

    def __init__(self, settings: SqlSettings, client_timeout_s: float, parts: SqlParts) -> None:
        self._settings = settings
        self._parts = parts
        self._rules = QueryRules(
            settings.max_time, settings.max_rows, client_timeout_s, parts.secrets
        )
        limits = WorkerLimits(settings.memory, settings.spill, settings.threads, parts.spill_folder)
        self._workers = Workers(limits, settings.workers, settings.idle)
        # Reentrant: garbage collection inside it may free an answer, which calls `left`.
        self._lock = threading.RLock()
        self._running: dict[str, _Running] = {}
        self._ended: Counter[str] = Counter()
        self._rows = 0
        self._spilled_bytes = 0
        # Looked for once: the status asks each second, and the search reads directories.
        self._installed = find_spec("duckdb") is not None

    def describe(self, statement: Statement, caller: SqlCaller) -> Described:
        """Return the schema of a statement's answer without running it.

        Raises:
            BadRequest: invalid SQL, an unknown table or column.
            NotAvailable: the extra ``sql`` is not installed, or ``sql.enabled`` is false.
            TooManyStreams: all workers are busy.
        """
        self._check_available()
        checked(statement)
        query = RunningQuery(
            self._workers,
            self._rules,
            lambda names: self._tables(names, caller, None),
            caller.check_wanted,
        )
        try:
            answering = query.begin(statement, describe=True)
            schema = schema_of(answering)
            for _ in query.batches(schema):
                raise AssertionError("a described query has no rows")
        finally:
            query.close()
        return Described(schema, parameters_of(answering))

    def run(
        self, statement: Statement, caller: SqlCaller, query_id: str | None = None
    ) -> SqlAnswer:
        """Start a query and return its answer once the schema is known.

        Args:
            query_id: a name for :meth:`cancel`; made up by default.

        Raises:
            as :meth:`describe`
        """
        self._check_available()
        checked(statement)
        name = query_id if query_id and query_id not in self._running else uuid.uuid4().hex
        query = RunningQuery(
            self._workers,
            self._rules,
            lambda names: self._tables(names, caller, running),
            caller.check_wanted,
        )

        def left() -> None:
            with self._lock:
                self._running.pop(name, None)
                outcome = "cancelled" if running.cancelled else _outcome(query.error)
                self._ended[outcome] += 1
                self._rows += query.rows
            for namespace in running.places:
                self._parts.places.leave("query", namespace)
            self._parts.ended(time.monotonic() - query.began)

        running = _Running(query, statement.allows_missing)
        with self._lock:
            self._running[name] = running
        try:
            schema = schema_of(query.begin(statement, describe=False))
        except BaseException:
            query.close()
            left()
            raise
        answer = SqlAnswer(name, schema, query, left)
        answer.daemons, answer.missing = sorted(running.daemons), sorted(running.missing)
        running.answer = weakref.ref(answer)
        return answer

    def cancel(self, query_id: str) -> bool:
        """End a query from any thread; return whether it was running."""
        with self._lock:
            running = self._running.get(query_id)
        if running is None:
            return False
        running.cancelled = True
        # Not ClientGone: pyarrow makes a KeyboardInterrupt of CANCELLED in a client's main thread.
        _end(running, BadRequest("the query was cancelled"))
        return True

    def held_bytes(self) -> int:
        """Return the bytes of batches that are between workers and clients."""
        with self._lock:
            return sum(each.query.held_bytes for each in self._running.values())

    def statistics(self) -> SqlStatus:
        """Return the numbers of queries and workers. Does not block."""
        with self._lock:
            running, ended, rows = len(self._running), Counter(self._ended), self._rows
        workers = self._workers
        return SqlStatus(
            available=self._settings.enabled and self._installed,
            running=running,
            waiting=workers.waiting,
            workers=workers.alive,
            spilled_bytes=self._spilled_bytes,
            started=running + sum(ended.values()),
            done=ended["done"],
            failed=ended["failed"],
            cancelled=ended["cancelled"],
            timed_out=ended["timed_out"],
            rows=rows,
        )

    async def run_forever(self) -> None:
        """End queries whose clients have stopped reading, and unused processes."""
        # Polled: a client that stops reading causes no event.
        while True:
            await trio.sleep(1.0)
            with self._lock:
                running = list(self._running.values())
            now = time.monotonic()
            for each in running:
                if (why := each.query.overdue(now)) is not None:
                    await trio.to_thread.run_sync(_end, each, why)
            await trio.to_thread.run_sync(self._workers.drop_idle)
            self._spilled_bytes = await trio.to_thread.run_sync(self._workers.spilled_bytes)

    def close(self) -> None:
        """End all queries and processes."""
        self._workers.close()
        with self._lock:
            running = list(self._running.values())
        for each in running:
            _end(each, Stopping("the daemon is stopping"))

    def _check_available(self) -> None:
        if not self._settings.enabled:
            raise NotAvailable("SQL is switched off at this daemon (sql.enabled)")
        if not self._installed:
            raise NotAvailable(
                "SQL needs DuckDB: pip install '.[sql]' in the folder of the daemon's sources, then"
                " restart it"
            )

    def _tables(self, names: Names, caller: SqlCaller, running: _Running | None) -> QueryTables:
        """Return the tables that a statement names; ``running`` is None to describe it."""
        asked = Asked(
            names,
            caller.may_read,
            caller.authorization,
            caller.check_wanted,
            running is None,
            running is not None and running.allows_missing,
        )
        tables = self._parts.finder.open(asked)
        try:
            if running is not None:
                self._count(running, tables.namespaces)
                running.daemons, running.missing = tables.daemons, tables.missing
        except BaseException:
            tables.close()
            raise
        return tables

    def _count(self, running: _Running, namespaces: set[str]) -> None:
        """Count a query with its namespaces.

        Raises:
            Stopping
            TooManyStreams, OverQuota: a namespace has as many as it may.
        """
        most = self._settings.max_per_namespace
        with self._lock:
            used = Counter(name for each in self._running.values() for name in each.namespaces)
            for namespace in namespaces:
                if used[namespace] >= most:
                    raise TooManyStreams(
                        f"{most} SQL queries of namespace {namespace} are running, as many as"
                        " sql.max_per_namespace allows",
                        retry_after_s=1.0,
                        details=limit_facts("sql.max_per_namespace", most, used[namespace] + 1),
                    )
            running.namespaces = namespaces
        for namespace in namespaces:
            self._parts.request(namespace)
            self._parts.places.take("query", namespace)
            running.places.append(namespace)


def _end(running: _Running, why: Exception) -> None:
    """End a query; close its answer unless a thread reads it, which closes it itself."""
    answer = running.answer
    if running.query.end(why) and answer is not None and (found := answer()) is not None:
        found.close()


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, ClientGone):
        return "cancelled"
    return "timed_out" if isinstance(error, TooSlow) else "failed"
