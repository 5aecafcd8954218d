"""Answers to SQL statements, and calls that end early.

A statement may compute for minutes before its first row. pyarrow's calls do not return for a
signal, so in the main thread they run in a thread of their own, and the main thread waits for it.

    waiting ──Ctrl-C──▶ :meth:`SqlCall.end` ──▶ the stream is cancelled, and so the query
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

import msgspec
import pyarrow as pa

from .errors import ClientError, InvalidRequest, TimedOut
from .retry import RetryPolicy, RetryState
from .streams import AnswerStream

T = TypeVar("T")

SIGNALS_S = 0.1
"""How often the main thread looks for signals at the latest."""


class SqlStream(AnswerStream):
    """The answer to an SQL statement: iterates over its batches, and is an Arrow stream.

    A context manager: leaving it early, or Ctrl-C while it is read, ends the query at the daemon.
    """

    @property
    def query_id(self) -> str | None:
        """The daemon's name for the query."""
        return self._told("query_id")

    @property
    def parts(self) -> tuple[str, ...]:
        """The ids of the daemons whose buffers were read; empty if the query needed none."""
        return msgspec.json.decode(self._told("parts") or "[]", type=tuple[str, ...])

    @property
    def missing(self) -> tuple[str, ...]:
        """The endpoints of daemons whose buffered rows were not read."""
        return msgspec.json.decode(self._told("missing") or "[]", type=tuple[str, ...])

    def _told(self, name: str) -> str | None:
        value = (self.schema.metadata or {}).get(name.encode())
        return None if value is None else value.decode()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches.

        Raises:
            ClientError: The query failed, or its answer broke off.
        """
        while (batch := self.read()) is not None:
            yield batch

    def read(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        item = self.read_raw()
        return None if item is None else item[0]

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """The next batch and its metadata, or None at the end."""
        return interruptible(super().read_raw, self.close)


class SqlCall:
    """One statement that is sent, again after transient errors; any thread may end it."""

    def __init__(self, ask: Callable[[], SqlStream], policy: RetryPolicy) -> None:
        """``ask`` sends the statement once."""
        self._ask = ask
        self._policy = policy
        self._lock = threading.Lock()
        self._stream: SqlStream | None = None
        self._ended = False

    def stream(self) -> SqlStream:
        """The answer, batch by batch."""
        return interruptible(lambda: self._patiently(self._open), self.end)

    def table(self) -> pa.Table:
        """The whole answer. One that breaks off is requested again."""
        return interruptible(lambda: self._patiently(self._read), self.end)

    def end(self) -> None:
        """End the query at the daemon, now or as soon as it has begun to answer."""
        with self._lock:
            self._ended = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def _open(self) -> SqlStream:
        stream = self._ask()
        with self._lock:
            self._stream = stream
            ended = self._ended
        if ended:
            stream.close()
        return stream

    def _read(self) -> pa.Table:
        with self._open() as stream:
            return pa.Table.from_batches([*stream], stream.schema)

    def _patiently(self, call: Callable[[], T]) -> T:
        retry = RetryState(self._policy, random.random)
        while not self._ended:
            try:
                return call()
            except TimedOut:
                raise  # the statement would take as long again
            except ClientError as exc:
                delay_s = retry.failed(exc, time.monotonic())
                if delay_s is None:
                    raise
            time.sleep(delay_s)
        raise InvalidRequest("the call was ended")


def interruptible(call: Callable[[], T], end: Callable[[], None]) -> T:
    """The result of ``call``. A signal handler that raises ends the wait for it, and calls ``end``.

    Python runs signal handlers in the main thread only, so other threads make the call themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done: Future[T] = Future()
    try:
        threading.Thread(target=_run, args=(call, done), name="ingester-sql", daemon=True).start()
        # Polars replaces the handler of SIGINT by one that does not interrupt a wait.
        while not wait([done], SIGNALS_S).done:
            pass
        return done.result()
    except BaseException:
        end()  # no-op if it was the call that raised
        raise
    finally:
        del done  # its error refers to this frame


def _run(call: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(call())
    except BaseException as exc:
        done.set_exception(exc)
