"""``tail``: prints a table's new rows as they arrive, each once, until a signal.

    the current position, or that of a query ─▶ the live feed, answer by answer ─▶ printed
                                                   ▲ an unreachable daemon is waited for

The position advances after an answer was printed completely, so no row is printed twice or skipped,
also when the daemon restarts (``tests/cli/test_tail.py``). If rows reached files before the feed
sent them (the tail was disconnected for longer than ``query.tail_retain``), a message names the
version that has them.

The main thread waits for a signal; a thread for each daemon asks and prints.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from ingester.client import ClientError
from ingester.client.connection import Connection
from ingester.client.filter_parser import Disjunction
from ingester.client.retry import is_retryable
from ingester.client.wire import QueryRequest, SnapshotInfo, encode_filter
from ingester.followers.feed import OPERATION, DaemonFeed, LiveAnswer
from ingester.followers.state import FeedPosition
from persist.backoff import Backoff

from .connecting import connect, connections
from .exits import USAGE, CommandFailed, stopped_by_signals
from .output.formats import CsvSink, JsonLinesSink, LiveTable
from .printing import print_line, say
from .query import asked_columns, asked_filter

FORMATS = ("table", "jsonl", "csv")
WAIT_S = 10.0
"""How long one call waits for new rows."""
FIRST_WAIT_S, MOST_WAIT_S = 0.1, 2.0
"""The pauses between attempts to reach a daemon."""
STALE = "stale"

T = TypeVar("T")


class TailArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command line."""

    namespace: str
    table: str
    columns: str | None
    filter: str | None
    since: str
    limit: int | None
    format: str | None


def run_tail(endpoint: str, asked: TailArguments) -> None:
    """Print rows until SIGINT or SIGTERM, or until ``limit`` of them were printed.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: The daemon refused.
    """
    kind = asked.format or ("table" if sys.stdout.isatty() else "jsonl")
    if kind not in FORMATS:
        raise CommandFailed(f"--format {kind!r} is not one of {', '.join(FORMATS)}", USAGE)
    if asked.since not in ("now", "start"):
        raise CommandFailed(f"--since {asked.since!r} is neither now nor start", USAGE)
    columns, filter_ = asked_columns(asked.columns), asked_filter(asked.filter)
    ended = stopped_by_signals()
    printer = _Printer(kind, asked.limit)
    table = (asked.namespace, asked.table)
    tails = [
        Tail(each, table, columns, filter_, printer.write)
        for each in connections(endpoint, 30.0, of_one_store=True)
    ]
    failures: list[BaseException] = []
    from_start = asked.since == "start"
    if from_start and len(tails) > 1:
        request = QueryRequest(*table, columns, filter_)
        _print_start(endpoint, request, tails, printer.write, ended)

    def follow(tail: Tail) -> None:
        try:
            if not (from_start and len(tails) > 1):
                tail.begin(from_start, ended)
            while not (ended.is_set() or printer.full):
                tail.step(ended)
        except BaseException as exc:
            failures.append(exc)
        finally:
            ended.set()

    # Not joined: it may be waiting for the daemon.
    for tail in tails:
        threading.Thread(target=follow, args=(tail,), name="tail", daemon=True).start()
    ended.wait()
    if failures:
        raise failures[0]


def _print_start(
    endpoint: str,
    request: QueryRequest,
    tails: Sequence[Tail],
    write: Callable[[pa.RecordBatch], None],
    ended: threading.Event,
) -> None:
    """Print all existing rows of several daemons; each tail continues after its part.

    Raises:
        ClientError: An unknown table or column, or the answer broke off.
    """
    for tail in tails:
        tail.patiently(tail.begin_now, ended)  # in a keyed table only the owner has a part
    with connect(endpoint) as client:
        fields = (request.namespace, request.table, request.columns, request.filter)
        opened = tails[0].patiently(lambda: client.query_stream(*fields), ended)
        if opened is None:
            return
        with opened as stream:
            for batch, _ in stream:
                write(_with_operation(batch) if tails[0].is_keyed else batch)
    parts = stream.snapshot.parts or (stream.snapshot,)
    # The last of several parts is that of the files, read by any daemon.
    for part in parts[: max(1, len(parts) - 1)]:
        for tail in tails:
            tail.continue_after(part)


class _Printer:
    """Prints complete batches in a format and counts their rows."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self._kind = kind
        self._left = limit
        self._lock = threading.Lock()
        self._terminal = sys.stdout.isatty()
        self._table = LiveTable(print_line, self._terminal)
        self._lines = JsonLinesSink(sys.stdout.buffer, self._terminal)
        self._csv: tuple[pa.Schema, CsvSink] | None = None

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows up to the limit. Any thread."""
        with self._lock:
            self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= int(batch.num_rows)
        if not batch.num_rows:
            return
        if self._kind == "table":
            self._table.write(batch)
        elif self._kind == "jsonl":
            self._lines.write(batch)
        else:
            self._csv_sink(batch.schema).write(batch)
        sys.stdout.flush()

    def _csv_sink(self, schema: pa.Schema) -> CsvSink:
        """The sink for these columns; a new one prints a heading."""
        if self._csv is None or not self._csv[0].equals(schema):
            self._csv = (schema, CsvSink(sys.stdout.buffer, schema, self._terminal))
        return self._csv[1]


class Tail:
    """The rows of one table at one daemon, in the daemon's order.

    Args:
        write: Called with each batch; a batch of a keyed table has the column ``_op``.
    """

    def __init__(
        self,
        connection: Connection,
        table: tuple[str, str],
        columns: list[str] | None,
        filter_: Disjunction | None,
        write: Callable[[pa.RecordBatch], None],
    ) -> None:
        self._connection = connection
        self._request = QueryRequest(*table, columns, filter_)
        encoded = None if filter_ is None else encode_filter(filter_)
        self._feed = DaemonFeed(connection, table, columns, encoded)
        self._name = "/".join(table)
        self._write = write
        self._position: FeedPosition | None = None
        self._version: int | None = None
        """The version whose rows are skipped, or None."""
        self._lost: FeedPosition | None = None
        """The last position of a lost log; rows of later epochs were not printed."""
        self.is_keyed = False
        self._backoff = _backoff()
        self._is_unreachable = False

    def begin(self, from_start: bool, ended: threading.Event) -> None:
        """Take the current position; with ``from_start``, print all rows up to it first.

        An unreachable daemon is waited for until the first row is printed.

        Raises:
            ClientError: An unknown table or column, or the answer broke off.
        """
        self.patiently(self.begin_now, ended)
        if ended.is_set():
            return
        if not from_start:
            say(f"tail of {self._name}: new rows of daemon {self._feed.ingester_id!r}")
            return
        ticket = self._request.ticket()
        opened = self.patiently(lambda: self._connection.stream(ticket), ended)
        if opened is None:
            return
        with opened as stream:
            said = stream.snapshot
            for batch, _ in stream:
                self._write(_with_operation(batch) if self.is_keyed else batch)
        if said.epoch is None or said.snapshot_sequence is None:
            raise CommandFailed(
                f"the daemon did not report the position of its answer for {self._name}"
            )
        self._position = FeedPosition(said.epoch, said.snapshot_sequence)

    def continue_after(self, part: SnapshotInfo) -> None:
        """Continue after an answer of this tail's daemon; those of others are ignored."""
        ours = part.ingester_id == self._feed.ingester_id
        if ours and part.epoch is not None and part.snapshot_sequence is not None:
            self._position = FeedPosition(part.epoch, part.snapshot_sequence)

    def begin_now(self) -> None:
        """Take the current position.

        Raises:
            ClientError: An unknown table or column, or the daemon is unreachable.
        """
        now = self._feed.ask(None, None, 0.0)
        self._position, self._version = now.position, None
        self._feed.table_version = now.table_version
        self.is_keyed = OPERATION in now.schema.names

    def step(self, ended: threading.Event) -> None:
        """Print the next rows, or wait for them or for the daemon.

        Raises:
            ClientError: An error that is not transient.
        """
        try:
            self._advance()
        except ClientError as exc:
            if not is_retryable(exc):
                raise
            self._wait(exc, ended)

    def _advance(self) -> None:
        try:
            answer = self._feed.ask(self._position, self._version, WAIT_S)
        except ClientError as exc:
            if exc.code != STALE and "table_version" not in exc.details:
                raise
            self._pass_over(exc)
        else:
            self._print(answer)

    def patiently(self, call: Callable[[], T], ended: threading.Event) -> T | None:
        """The result of a call, retried until the daemon is reachable; None if the tail ends first.

        Raises:
            ClientError: An error that is not transient.
        """
        while not ended.is_set():
            try:
                found = call()
            except ClientError as exc:
                if not is_retryable(exc):
                    raise
                self._wait(exc, ended)
            else:
                self._is_back()
                return found
        return None

    def _is_back(self) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            say(f"tail of {self._name}: resumed")
        self._backoff = _backoff()

    def _print(self, answer: LiveAnswer) -> None:
        self._is_back()
        for batch in answer.batches:
            if self._lost is None or batch.group.epoch > self._lost.epoch:
                self._write(batch.rows)
        self._position = answer.position
        if not answer.more:
            self._version = self._lost = None

    def _wait(self, error: ClientError, ended: threading.Event) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            say(f"tail of {self._name}: waiting: {' '.join(str(error).split())}")
        ended.wait(self._backoff.next_s())

    def _pass_over(self, stale: ClientError) -> None:
        """Continue after rows that the feed no longer sends, and report them."""
        version = stale.details.get("version")
        if isinstance(version, int) and not stale.details.get("anew", True):
            self._version = version
            say(
                f"tail of {self._name}: rows that arrived while it was disconnected are not shown:"
                f" they are in the files of version {version}"
            )
            return
        before = self._position or self._lost
        self.begin_now()
        now = self._position
        if before is not None and now is not None and now.epoch > before.epoch:
            # Another process without the log of the former one. It has the rows that it accepted
            # itself and that are not in files.
            self._position, self._version, self._lost = None, version, before
            say(
                f"tail of {self._name}: daemon {self._feed.ingester_id!r} began epoch {now.epoch}"
                f" without the log of epoch {before.epoch}: rows after sequence"
                f" {before.sequence} of that epoch, and rows already in files of version"
                f" {version}, are not shown; other rows of the new epoch follow, including rows"
                " that clients send again"
            )
            return
        said = " ".join(str(stale).partition(";")[0].split())
        say(f"tail of {self._name}: restarts with new rows: {said}")


def _with_operation(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a query in the form of a keyed table's feed."""
    operations = pa.array(["upsert"] * batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays(
        [*batch.columns, operations], names=[*batch.schema.names, OPERATION]
    )


def _backoff() -> Backoff:
    return Backoff(FIRST_WAIT_S, MOST_WAIT_S, random.Random())
