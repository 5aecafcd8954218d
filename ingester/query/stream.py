"""One answer, pulled by the client's flow control.

The gRPC server drops the stream when it ends, finished or not; that frees it and closes its
snapshot. The event loop only expires it: if the client does not return in time, the snapshot is
released and the next pull raises `timeout` (tests/query/test_open_streams.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Protocol

from ingester.errors import TooSlow
from ingester.query.answer_places import Kind
from ingester.query.fair_scheduler import CpuAccount, FairScheduler
from ingester.query.read_context import AnswerPart, Selection
from ingester.query.snapshot import Snapshot


class Reader(Protocol):
    """Reads a selection of a snapshot. Must not refer to its stream, which is freed by reference
    count.
    """

    @property
    def selection(self) -> Selection: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def scheduler(self) -> FairScheduler: ...
    @property
    def account(self) -> CpuAccount: ...
    def parts(self) -> Generator[AnswerPart, None, None]:
        """Yield all parts with at least one row."""

    def let_go(self) -> None:
        """Release the last part."""


class AnswerStream:
    """An iterator of parts that closes its snapshot at the end, on error and when dropped."""

    def __init__(
        self,
        table: tuple[str, str],
        reader: Reader,
        kind: Kind = "query",
        *,
        on_close: Callable[[AnswerStream], None],
    ) -> None:
        self.table = table
        self.kind = kind
        self.selection: Selection = reader.selection
        self.snapshot = reader.snapshot
        self.rows = 0
        self.nbytes = 0
        self.sending_since: float | None = time.monotonic()
        """When the last part was handed over; None while the next one is prepared."""
        self.expired = False
        self._on_close = on_close
        self._scheduler = reader.scheduler
        self._account = reader.account
        self._lock = threading.Lock()
        self._closed = False
        self._reader = reader
        self._parts = reader.parts()

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> AnswerPart:
        with self._lock:
            if self.expired:
                raise TooSlow(
                    "the client made no progress for query.client_timeout, so the snapshot was"
                    " released",
                    details={"rows_sent": self.rows},
                )
            self.sending_since = None
        try:
            self._account.check()
            self._scheduler.take(self._account)
            try:
                part = next(self._parts)
            finally:
                self._scheduler.give()
        except BaseException:
            self.close()
            raise
        self.rows += part.batch.num_rows
        self.nbytes += part.nbytes
        with self._lock:
            self.sending_since = time.monotonic()
        return part

    def __del__(self) -> None:
        self.close()

    def expire(self, before: float) -> bool:
        """Release the snapshot if the client has not moved since ``before``. Thread-safe."""
        with self._lock:
            if self._closed or self.expired or self.sending_since is None:
                return False
            if self.sending_since > before:
                return False
            self.expired = True
        # No thread is inside: a part is with the client, and the next pull stops at the check
        # above.
        self._parts.close()
        self.snapshot.close()
        return True

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._reader.let_go()
        self.snapshot.close()
        self._on_close(self)
