"""Rows that are streamed into a region all the time, and which of them have to be there.

A version that a push makes has the rows that were streamed since it was begun; a version that
counts again after a rollback has all that it had, and what was streamed meanwhile. A row that was
sent while the version was being made may be on either side.
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import NamedTuple

from ingester.client import Client
from ingester.pushes.driver import utc_now
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status
from tests.push.rows import NAMESPACE, TABLE, streamed

EVERY_S = 0.1
BATCH = 3


class Sent(NamedTuple):
    """A batch that was acknowledged."""

    rows: range
    sent_at: datetime
    acknowledged_at: datetime


class Bounds(NamedTuple):
    """Streamed rows that have to be in a region, and those that may be."""

    must: frozenset[int]
    may: frozenset[int]


class Streaming:
    """A client that writes into one region, until it is told to pause or to end."""

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
        """Write from now on."""
        self._go.set()
        self._thread.start()

    def pause(self) -> None:
        """Return when all that was sent is acknowledged; nothing more is sent."""
        self._go.clear()
        assert self._idle.wait(60), "a write was not answered within a minute"
        self.check()

    def go_on(self) -> None:
        """Write again."""
        self._idle.clear()
        self._go.set()

    def end(self) -> None:
        """Write nothing more."""
        self._end.set()
        self._go.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def check(self) -> None:
        """Raise what has gone wrong; no write may fail."""
        if self._failure is not None:
            raise AssertionError(f"a write failed: {self._failure}") from self._failure

    @property
    def rows(self) -> int:
        """So many rows are acknowledged."""
        return sum(len(each.rows) for each in self._sent)

    def pushed(self, record: PushRecord, region: str) -> None:
        """Take note of a push that is over: where it is live, its version has what came since."""
        if record.region(region).status is not Status.SERVING:
            return
        since = Status.WRITING if record.plan.replay_since else Status.SERVING
        at = [e.at for e in record.history if e.region == region and since.value in e.what]
        self._from = (record.began_at, at[0])

    def bounds(self) -> Bounds:
        """Return what has to be in the region now, and what may be there."""
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
                    client.write(NAMESPACE, TABLE, streamed(rows))
                    self._sent.append(Sent(rows, sent_at, utc_now()))
                    number += BATCH
                    self._end.wait(EVERY_S)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._idle.set()
