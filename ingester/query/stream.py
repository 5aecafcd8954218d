"""One answer, pulled by the client's flow control.

Law of this file: the stream is freed when the gRPC server drops it, finished or not, and closes its
snapshot then. The loop only expires it: when the client does not come back in time the snapshot is
let go, and the next pull says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Protocol

from ingester.errors import TooSlow
from ingester.query.answer_places import Kind
from ingester.query.cpu_account import CpuAccount
from ingester.query.fair_scheduler import FairScheduler
from ingester.query.read_context import AnswerPart, Selection
from ingester.query.snapshot import Snapshot


class Reader(Protocol):
    """Reads a selection of a snapshot. It must not refer to its stream, which is freed by count."""

    @property
    def selection(self) -> Selection:
        """What is read."""

    @property
    def snapshot(self) -> Snapshot:
        """What it is read of."""

    @property
    def scheduler(self) -> FairScheduler:
        """What gives the turns to compute."""

    @property
    def account(self) -> CpuAccount:
        """What counts the processor time."""

    def parts(self) -> Generator[AnswerPart, None, None]:
        """Give all parts with at least one row."""

    def let_go(self) -> None:
        """Let go of the last part: nobody wants it any more."""


class AnswerStream:
    """An iterator of parts, which closes its snapshot at the end, on error and when dropped."""

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
        """The time at which the last part was handed over; None while the next one is made."""
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
                    "the client made no progress for query.client_timeout; the snapshot was let go",
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
        """Let the snapshot go if the client has not moved since ``before``. Any thread."""
        with self._lock:
            if self._closed or self.expired or self.sending_since is None:
                return False
            if self.sending_since > before:
                return False
            self.expired = True
        # Nobody is in it: a part is handed over, and the next pull gets no further than above.
        self._parts.close()
        self.snapshot.close()
        return True

    def close(self) -> None:
        """Let everything go; twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._reader.let_go()
        self.snapshot.close()
        self._on_close(self)
