"""``tail``: a table's new rows as they come, each once, until a signal.

    the position of now, or behind a query ─▶ the live feed, answer by answer ─▶ printed
                                                   ▲ a daemon that is away is waited for

Law of this file: the position moves on when an answer was printed whole, so that no row is printed
twice or left out, also when the daemon is started anew. Where rows went into files before they were
told (a tail that was away for longer than ``query.tail_retain``), that is said, with the version
that has them: the feed does not tell them any more.

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
"""The time that one call waits for something new."""
FIRST_WAIT_S, MOST_WAIT_S = 0.1, 2.0
"""The pauses between attempts at a daemon that is away."""
STALE = "stale"

T = TypeVar("T")


class TailArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that are asked for, as given on the command line."""

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
        CommandFailed: wrong usage. ClientError: the daemon refused.
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

    # Not joined: it may wait for the daemon, and what it has printed is out.
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
    """Print all rows that there are at several daemons; each tail goes on behind its part.

    Raises:
        ClientError: no such table or column, or the answer breaks off.
    """
    for tail in tails:
        tail.patiently(tail.begin_now, ended)  # of a keyed table its owner alone has a part
    with connect(endpoint) as client:
        fields = (request.namespace, request.table, request.columns, request.filter)
        opened = tails[0].patiently(lambda: client.query_stream(*fields), ended)
        if opened is None:
            return
        with opened as stream:
            for batch, _ in stream:
                write(_with_operation(batch) if tails[0].is_keyed else batch)
    parts = stream.snapshot.parts or (stream.snapshot,)
    # The last of several parts is of the files, by whichever daemon read them.
    for part in parts[: max(1, len(parts) - 1)]:
        for tail in tails:
            tail.go_on_behind(part)


class _Printer:
    """Prints batches in a format, whole, and counts their rows."""

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
        """Whether as many rows were printed as were asked for."""
        return self._left == 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows that there is room for. Any thread."""
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
        """The sink of these columns; its heading stands above the first row of each."""
        if self._csv is None or not self._csv[0].equals(schema):
            self._csv = (schema, CsvSink(sys.stdout.buffer, schema, self._terminal))
        return self._csv[1]


class Tail:
    """The rows of one table at one daemon, in the order in which it took them.

    Args:
        write: takes each batch of rows; a batch of a keyed table has the column ``_op``.
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
        """The version whose files are passed over; None where nothing is."""
        self._lost: FeedPosition | None = None
        """The last position of a log that is lost: what is of later epochs was not printed."""
        self.is_keyed = False
        self._backoff = _backoff()
        self._is_away = False

    def begin(self, from_start: bool, ended: threading.Event) -> None:
        """Take the position of now; with ``from_start`` print all rows up to it before.

        A daemon that is away is waited for, as long as nothing is printed.

        Raises:
            ClientError: no such table or column, or an answer that breaks off.
        """
        self.patiently(self.begin_now, ended)
        if ended.is_set():
            return
        if not from_start:
            say(f"tail of {self._name}: what daemon {self._feed.ingester_id!r} takes from now on")
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
            raise CommandFailed(f"the daemon does not say what its answer of {self._name} is of")
        self._position = FeedPosition(said.epoch, said.snapshot_sequence)

    def go_on_behind(self, part: SnapshotInfo) -> None:
        """Go on behind an answer of this tail's daemon; another one's changes nothing."""
        ours = part.ingester_id == self._feed.ingester_id
        if ours and part.epoch is not None and part.snapshot_sequence is not None:
            self._position = FeedPosition(part.epoch, part.snapshot_sequence)

    def begin_now(self) -> None:
        """Take the position of now.

        Raises:
            ClientError: no such table or column, or no daemon.
        """
        now = self._feed.ask(None, None, 0.0)
        self._position, self._version = now.position, None
        self._feed.table_version = now.table_version
        self.is_keyed = OPERATION in now.schema.names

    def step(self, ended: threading.Event) -> None:
        """Print what comes next, or wait for it, or for a daemon that is away.

        Raises:
            ClientError: anything that does not pass by itself.
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
        """What a call gives, when a daemon that is away is back; None where the tail ends before.

        Raises:
            ClientError: anything that does not pass by itself.
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
        if self._is_away:
            self._is_away = False
            say(f"tail of {self._name}: goes on")
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
        if not self._is_away:
            self._is_away = True
            say(f"tail of {self._name}: waiting: {' '.join(str(error).split())}")
        ended.wait(self._backoff.next_s())

    def _pass_over(self, stale: ClientError) -> None:
        """Go on behind what the feed does not tell any more, and say what that is."""
        version = stale.details.get("version")
        if isinstance(version, int) and not stale.details.get("anew", True):
            self._version = version
            say(
                f"tail of {self._name}: rows that came since it was away are not shown: they are"
                f" in the files of version {version}, and no more told"
            )
            return
        before = self._position or self._lost
        self.begin_now()
        now = self._position
        if before is not None and now is not None and now.epoch > before.epoch:
            # Another process, which does not have the log of the one before. What it has taken
            # itself and put into no file is there.
            self._position, self._version, self._lost = None, version, before
            say(
                f"tail of {self._name}: daemon {self._feed.ingester_id!r} began epoch {now.epoch}"
                f" without the log of epoch {before.epoch}: not shown is what came behind sequence"
                f" {before.sequence} of that, and what this one has put into files by version"
                f" {version}; its other rows follow, those that are sent again among them"
            )
            return
        said = " ".join(str(stale).partition(";")[0].split())
        say(f"tail of {self._name}: begins anew with what comes from now on: {said}")


def _with_operation(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a query as the feed has those of a keyed table."""
    operations = pa.array(["upsert"] * batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays(
        [*batch.columns, operations], names=[*batch.schema.names, OPERATION]
    )


def _backoff() -> Backoff:
    return Backoff(FIRST_WAIT_S, MOST_WAIT_S, random.Random())
