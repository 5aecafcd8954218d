"""Answers to SQL statements, which Ctrl-C ends.

A statement may compute for minutes before its first row. pyarrow's calls do not return for a
signal, so in the main thread they run in a thread of their own, and the main thread waits for it.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

import msgspec
import pyarrow as pa

from .errors import ClientError, TimedOut
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

    def read_all(self) -> pa.Table:
        """The whole answer."""

        def read() -> pa.Table:
            batches = [item[0] for item in iter(super(SqlStream, self).read_raw, None)]
            return pa.Table.from_batches(batches, self.schema)

        return interruptible(read, lambda _: self.close())

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """The next batch and its metadata, or None at the end."""
        return interruptible(super().read_raw, lambda _: self.close())


def opened(
    ask: Callable[[float | None], SqlStream], policy: RetryPolicy, within_s: float | None
) -> SqlStream:
    """The stream that ``ask`` returns, after transient errors. Ctrl-C ends the wait for it.

    Args:
        ask: gets the rest of ``within_s``, which all tries share.
    """
    return interruptible(
        lambda: _patiently(ask, policy, within_s), lambda d: d.add_done_callback(_close)
    )


def _close(done: Future[SqlStream]) -> None:
    if done.exception() is None:
        done.result().close()


def _patiently(
    ask: Callable[[float | None], SqlStream], policy: RetryPolicy, within_s: float | None
) -> SqlStream:
    retry = RetryState(policy, random.random)
    ends_at = math.inf if within_s is None else time.monotonic() + within_s
    while True:
        try:
            # Never below zero, which means no limit.
            return ask(None if within_s is None else max(0.001, ends_at - time.monotonic()))
        except TimedOut:
            raise  # the statement would take as long again
        except ClientError as exc:
            now = time.monotonic()
            delay_s = retry.failed(exc, now)
            if delay_s is None or now + delay_s >= ends_at:
                raise
        time.sleep(delay_s)


def interruptible(call: Callable[[], T], end: Callable[[Future[T]], object]) -> T:
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
        end(done)  # no-op if it was the call that raised
        raise
    finally:
        del done  # its error refers to this frame


def _run(call: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(call())
    except BaseException as exc:
        done.set_exception(exc)
