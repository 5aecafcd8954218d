"""One running query: serves its worker and yields the batches of its answer.

    worker asks for names, scans, batches ─▶ answered here, in the thread that waits
    worker sends a batch ─▶ yielded; nothing more is read until the client asks for more

Every way out is one of two: the worker said that it has ended, and is given back; or it is killed.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import structlog

from ingester.errors import (
    BadRequest,
    ClientGone,
    IngesterError,
    InternalFailure,
    StoreUnreachable,
    TooSlow,
    limit_facts,
)
from ingester.sql.processes import Worker, Workers
from ingester.sql.request import Statement
from ingester.sql.tables import QueryTables
from ingester.sql.wire import (
    Answering,
    Channel,
    ChannelClosed,
    Failure,
    Names,
    OpenScan,
    Query,
    TablesGiven,
    batches_of,
    bodies_of,
    decode,
    encode,
)

log = structlog.get_logger(__name__)

_Frame = tuple[bytes, Sequence[bytes | pa.Buffer]]

POLL_MS = 100
"""How often a waiting query looks whether its client has disconnected."""
EXIT_S = 1.0
"""How long a worker that has closed its socket may take to exit, which tells why."""
REPLY_BYTES = 2 << 20
"""About this many bytes of a scan are sent at a time."""


@dataclass(frozen=True, slots=True)
class QueryRules:
    """The limits of one query.

    Attributes:
        max_time_s: its time, the client's reading included.
        max_rows: rows of its answer.
        client_timeout_s: how long its client may read nothing.
        secrets: texts that errors must not show, the folders of the store and of the queries.
    """

    max_time_s: float
    max_rows: int
    client_timeout_s: float
    secrets: tuple[str, ...]


class RunningQuery:
    """A query in its worker. One thread at a time, except `end` and `overdue`.

    Args:
        open_tables: returns the tables for names.
        check_wanted: raises ClientGone if nobody waits any more.
    """

    def __init__(
        self,
        workers: Workers,
        rules: QueryRules,
        open_tables: Callable[[Names], QueryTables],
        check_wanted: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._rules = rules
        self._open_tables = open_tables
        self._check_wanted = check_wanted
        self._tables = QueryTables()
        self._scans: dict[int, Iterator[pa.RecordBatch]] = {}
        self._cause: Exception | None = None
        """Why a table could not be opened or read."""
        self.error: BaseException | None = None
        """What the query failed with."""
        self._lock = threading.RLock()
        self._ended: Exception | None = None
        self.began = self._checked_at = time.monotonic()
        self._suspended_at: float | None = None
        """Since when the client has what was computed; None while a thread reads."""
        self.rows = 0
        self.held_bytes = 0
        """Bytes of the batches in transit to the client or to the worker."""
        self.worker: Worker | None = workers.take()
        self._poll = select.poll()

    def begin(self, statement: Statement, *, describe: bool) -> Answering:
        """Send the statement and return what the worker knows before the first row.

        Raises:
            BadRequest, TooSlow, StoreUnreachable, InternalFailure, ClientGone
        """
        row = statement.parameters
        parameters = None
        if row is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, row.schema) as writer:
                writer.write_batch(row)
            parameters = sink.getvalue().to_pybytes()
        query = Query(
            statement.text, statement.namespace, parameters, describe, statement.first_rows
        )
        with self._failures():
            assert self.worker is not None
            self.worker.channel.send(b"Q", [encode(query)], self._wait)
            kind, body = self._next()
            assert kind == b"S", f"{kind!r} instead of the schema"
            self._suspend()
            return decode(body, type=Answering)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the answer.

        Raises:
            as :meth:`begin`
        """
        while True:
            with self._failures():
                self._resume()
                kind, body = self._next()
                if kind == b"E":
                    self._leave(whole=True)
                    return
                self.held_bytes = body.size
                (batch,) = batches_of(body, schema)
                self._count(batch.num_rows)
                self._suspend()
            yield batch

    def end(self, why: Exception) -> bool:
        """End the query from any thread; the thread that reads it raises ``why``.

        Returns:
            Whether no thread is reading, so that the caller must close the answer.
        """
        with self._lock:
            if self._ended is None:
                self._ended = self.error = why
            if self.worker is not None:
                self.worker.kill()
            return self._suspended_at is not None

    def close(self) -> None:
        """Release everything. In the thread that reads, or when none does; idempotent."""
        if self.worker is not None and self.error is None:
            self.error = ClientGone("the answer was dropped before its end")
        self._leave(whole=False)

    def overdue(self, now: float) -> Exception | None:
        """Return why a query must end whose client reads too little. Thread-safe."""
        rules, suspended_at = self._rules, self._suspended_at
        if suspended_at is None:
            return None  # the thread that reads looks itself
        if now > self.began + rules.max_time_s:
            return _too_long(rules.max_time_s)
        if now > suspended_at + rules.client_timeout_s:
            return TooSlow("the client made no progress for query.client_timeout")
        return None

    def _suspend(self) -> None:
        with self._lock:
            self._suspended_at = time.monotonic()

    def _resume(self) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._suspended_at = None

    def _next(self) -> tuple[bytes, pa.Buffer]:
        """Serve the worker until it says something about the answer."""
        assert self.worker is not None, "the query has ended"
        channel = self.worker.channel
        while True:
            kind, body = channel.receive(self._wait)
            if kind == b"N":
                self._reply(channel, partial(self._open_named, decode(body, type=Names)))
            elif kind == b"O":
                self._open(decode(body, type=OpenScan))
            elif kind == b"R":
                self._reply(channel, partial(self._read_on, decode(body, type=int)))
            elif kind == b"C":
                self._close_scan(decode(body, type=int))
            elif kind == b"F":
                told = decode(body, type=Failure)
                # Without memory, or after a defect, it may fail the next query too.
                self._leave(whole=told.reason not in ("memory", "internal"))
                raise self._cause or self._failure(told)
            else:
                return kind, body

    def _reply(self, channel: Channel, answer: Callable[[], _Frame]) -> None:
        """Send an answer, or why there is none: the worker then ends its query and stays usable."""
        try:
            kind, bodies = answer()
        except (ClientGone, TooSlow):
            raise
        except Exception as exc:
            self._cause = exc
            kind, bodies = b"X", [encode(Failure("source", str(exc)))]
        channel.send(kind, bodies, self._wait)

    def _wait(self, events: int) -> None:
        """Wait for the worker to send, or to read; look after client and clock meanwhile."""
        assert self.worker is not None
        self._poll.register(self.worker.channel.fileno(), events)
        while not self._poll.poll(POLL_MS):
            self._check()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended
        now = time.monotonic()
        if now > self.began + self._rules.max_time_s:
            raise _too_long(self._rules.max_time_s)
        # A scan checks at each batch; gRPC takes longer to answer than the batch itself.
        if now >= self._checked_at + POLL_MS / 1000:
            self._checked_at = now
            self._check_wanted()

    def _open(self, asked: OpenScan) -> None:
        source = self._tables.sources[asked.source]
        self._scans[asked.scan] = source.read(asked.columns, asked.filter, self._check)

    def _open_named(self, names: Names) -> _Frame:
        """Open the tables that the statement names."""
        self._tables = self._open_tables(names)
        return b"T", [encode(TablesGiven(self._tables.given))]

    def _read_on(self, scan: int) -> _Frame:
        """Return the next batches of a scan."""
        batches: list[pa.RecordBatch] = []
        nbytes = 0
        for batch in self._scans[scan]:
            batches.append(batch)
            nbytes += batch.nbytes
            if nbytes >= REPLY_BYTES:
                break
        self.held_bytes = nbytes
        return b"B" if batches else b"Z", bodies_of(batches)

    def _close_scan(self, scan: int) -> None:
        self._scans.pop(scan).close()  # type: ignore[attr-defined]

    def _count(self, rows: int) -> None:
        self.rows += rows
        most = self._rules.max_rows
        if self.rows > most:
            raise BadRequest(
                f"the answer has more than {most} rows, the limit of sql.max_rows: add a LIMIT",
                details=limit_facts("sql.max_rows", most, self.rows),
            )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """End the query on any error inside, and say what an ended process means."""
        try:
            yield
        except BaseException as exc:
            died = isinstance(exc, ChannelClosed)
            code = self._leave(whole=False, wait_s=EXIT_S if died else 0.0)
            self.error = exc
            if not died:
                raise
            self.error = self._ended or _process_ended(code)
            raise self.error from None

    def _leave(self, *, whole: bool, wait_s: float = 0.0) -> int | None:
        """Give the worker back, or kill it after a wait and return its exit code."""
        self.held_bytes = 0
        with self._lock:
            worker, self.worker = self.worker, None
            ended = self._ended
        if worker is None:
            return None
        for scan in self._scans.values():
            scan.close()  # type: ignore[attr-defined]
        self._scans.clear()
        self._tables.close()
        if whole and ended is None:
            self._workers.give(worker)
            return None
        return self._workers.discard(worker, wait_s)

    def _failure(self, told: Failure) -> Exception:
        # Its advice is to change settings, which a query cannot.
        message = told.message.partition("\n\nPossible solutions:")[0]
        for secret in self._rules.secrets:
            message = message.replace(secret, "")
        if told.reason == "memory":
            return BadRequest(
                f"the query needs more than sql.memory or sql.spill allows: {message}",
                details={"limit": "sql.memory"},
            )
        if told.reason == "files":
            return StoreUnreachable(
                f"a file cannot be read or written: {message}", retry_after_s=1.0
            )
        if told.reason == "internal":
            log.error("SQL engine failed", error=message, runbook="internal-error")
            return InternalFailure(f"the SQL engine failed: {message}")
        return BadRequest(message)


def _process_ended(code: int | None) -> InternalFailure:
    log.warning("SQL worker ended", exit_code=code, runbook="internal-error")
    meaning = f"exit code {code}"
    if code == -signal.SIGKILL:
        meaning = "SIGKILL, by an operator or, for lack of memory, by the system: lower sql.memory"
    return InternalFailure(
        f"the process of the query ended by itself ({meaning}); other queries and writes are not"
        " affected"
    )


def _too_long(seconds: float) -> IngesterError:
    return TooSlow(
        f"the query took longer than {seconds:g} s, as long as sql.max_time allows",
        details={"limit": "sql.max_time", "most": seconds},
    )


def schema_of(answering: Answering) -> pa.Schema:
    """Return the schema of an answer."""
    return pa.ipc.read_schema(pa.py_buffer(answering.schema))


def parameters_of(answering: Answering) -> pa.Schema:
    """Return the parameters of a described query."""
    return pa.ipc.read_schema(pa.py_buffer(answering.parameters))
