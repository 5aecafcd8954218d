"""Rows streamed into a region all the time, and which of them an answer must have.

A pushed version has the rows streamed since the push began; a version that is current again
after a rollback has all its old rows, and those streamed meanwhile. A row sent while the version
was being created may be on either side.
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from ingester.client import Client
from ingester.pushes.driver import utc_now
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status
from tests.push.rows import NAMESPACE, TABLE, streamed

EVERY_S = 0.1
BATCH = 3


class Sent(NamedTuple):
    """An acknowledged batch."""

    rows: range
    sent_at: datetime
    acknowledged_at: datetime


class Bounds(NamedTuple):
    """The streamed rows that a region must have, and those that it may have."""

    must: frozenset[int]
    may: frozenset[int]


class Streaming:
    """A client that writes to one region until it is paused or stopped."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._sent: list[Sent] = []
        self._from: tuple[datetime, datetime] | None = None
        self._go = threading.Event()
        self._idle = threading.Event()
        self._end = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="streaming")

    def begin(self) -> None:
        """Start to write."""
        self._go.set()
        self._thread.start()

    def pause(self) -> None:
        """Stop sending, and return when all sent rows are acknowledged."""
        self._go.clear()
        assert self._idle.wait(60), "a write was not answered within a minute"
        self.check()

    def go_on(self) -> None:
        """Write again."""
        self._idle.clear()
        self._go.set()

    def end(self) -> None:
        """Stop writing."""
        self._end.set()
        self._go.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def check(self) -> None:
        """Raise any failure; no write may fail."""
        if self._failure is not None:
            raise AssertionError(f"a write failed: {self._failure}") from self._failure

    @property
    def rows(self) -> int:
        """The number of acknowledged rows."""
        return sum(len(each.rows) for each in self._sent)

    def pushed(self, record: PushRecord, region: str) -> None:
        """Record a finished push: where it is live, it has all rows since its start."""
        if record.region(region).status is not Status.SERVING:
            return
        since = Status.WRITING if record.plan.replay_since else Status.SERVING
        at = [e.at for e in record.history if e.region == region and since.value in e.what]
        self._from = (record.began_at, at[0])

    def bounds(self) -> Bounds:
        """Return the rows that the region must have now, and those that it may have."""
        sent = list(self._sent)
        if self._from is None:
            everything = frozenset(row for each in sent for row in each.rows)
            return Bounds(everything, everything)
        began, made = self._from
        must = frozenset(row for each in sent if each.sent_at > made for row in each.rows)
        may = frozenset(row for each in sent if each.acknowledged_at > began for row in each.rows)
        return Bounds(must, may)

    def _run(self) -> None:
        number = 0
        try:
            with Client(self._endpoint) as client:
                while not self._end.is_set():
                    if not self._go.is_set():
                        self._idle.set()
                        self._go.wait()
                        continue
                    rows = range(number, number + BATCH)
                    sent_at = utc_now()
                    one_by_one = pa.Table.from_batches([streamed(rows)]).to_reader(1)
                    client.write(NAMESPACE, TABLE, one_by_one)
                    self._sent.append(Sent(rows, sent_at, utc_now()))
                    number += BATCH
                    self._end.wait(EVERY_S)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._idle.set()
