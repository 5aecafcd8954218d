"""Reads a scan in a thread of its own, so that a query can end while the store is silent.

the query's thread: asks for a batch, looks after its client ten times a second
the scan's thread: reads it; ends by itself after the read during which the query has ended
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from ingester.errors import ClientGone

POLL_S = 0.1

Read = Callable[[Callable[[], None]], Iterator[pa.RecordBatch]]


def read_apart(read: Read, check_wanted: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan; a generator, closed if not read to its end.

    Args:
        read: returns the batches; its argument raises once the generator is closed.
        check_wanted: raises if the query has to end. Called in the caller's thread only: what it
            asks is gone when the call has ended.
    """
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
    told: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
    left = threading.Event()

    def check_left() -> None:
        if left.is_set():
            raise ClientGone("the query has ended")

    def work() -> None:
        try:
            batches = read(check_left)
            while asked.get():
                told.put(next(batches, None))
        except BaseException as exc:
            told.put(exc)

    threading.Thread(target=work, name="sql-scan", daemon=True).start()
    try:
        while True:
            asked.put(True)
            found = _next(told, check_wanted)
            if isinstance(found, BaseException):
                raise found
            if found is None:
                return
            yield found
    finally:
        left.set()
        asked.put(False)


def _next(
    told: queue.SimpleQueue[pa.RecordBatch | BaseException | None],
    check_wanted: Callable[[], None],
) -> pa.RecordBatch | BaseException | None:
    while True:
        try:
            return told.get(timeout=POLL_S)
        except queue.Empty:
            check_wanted()
