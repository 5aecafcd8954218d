"""Swaps and rollbacks under a stream of writes, while pushers and daemons are killed at any step.

The pushed version has no rows but the first; what is streamed goes on into whichever counts. So
after the last rollback every acknowledged row has to be in version 1, once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from persist.manifest import Manifest
from persist.store import ObjectStore, open_store
from persist.switching import roll_back, switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import Killed, KillingStore, push_some
from tests.drivers.waiting import until
from tests.drivers.wire import Table, numbers, persist, put, rows

TABLE: Table = ("n", "t")
BATCH = 10
STEPS = 6
"""A switch makes five changes in the store, a rollback one more for each file that goes along."""


class Writing:
    """A client that sends batches of an origin, and again what was not acknowledged."""

    def __init__(self, origin: str, first: int) -> None:
        self.acknowledged = 0
        self.error: Exception | None = None
        self._origin = origin
        self._first = first
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, flight: str) -> None:
        """Go on writing to the daemon that is there now, until it is gone."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(flight,))
        self._thread.start()

    def end(self) -> None:
        """Stop, or see that it has."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def rows(self) -> range:
        """The rows that are acknowledged."""
        return range(self._first, self._first + self.acknowledged * BATCH)

    def is_past(self, count: int) -> bool:
        """Whether so many batches are acknowledged."""
        return self.acknowledged > count

    def _run(self, flight: str) -> None:
        try:
            with fl.connect(flight) as client:
                while not self._stop.is_set():
                    sequence = self.acknowledged + 1
                    batch = numbers(self._first + (sequence - 1) * BATCH, BATCH)
                    told = [{"sequence": sequence}]
                    put(client, TABLE, batch, origin=self._origin, metadata=told)
                    self.acknowledged = sequence
                    if sequence % 4 == 0:
                        persist(client, TABLE)
        except (fl.FlightError, pa.ArrowException, OSError) as exc:
            self.error = exc  # the daemon was killed


def killed_at(step: int, move: Callable[[Any], object], store: ObjectStore) -> bool:
    """Whether the process that makes a move ended at this change of it, half before, half after."""
    killing: Any = KillingStore(store, step, done=step % 2 == 0)
    try:
        move(killing)
    except Killed:
        return True
    return False


def brought_to_its_end(store: ObjectStore, move: Callable[[Any], object], target: int) -> None:
    """A move that was left somewhere: the daemon ends what is sealed, else it is made again."""
    manifest = Manifest(store, *TABLE)
    if manifest.table_version != target and manifest.load().sealed is None:
        move(store)
    until(lambda: Manifest(store, *TABLE).table_version == target, f"version {target} counts")


def start(data: Path, **settings: Any) -> Daemon:
    """A daemon that persists when asked, and looks for others' commits all the time."""
    return Daemon.start(data, persist__max_age="1h", manifest__refresh="10ms", **settings)


def test_each_acknowledged_row_is_in_the_version_that_counts_once(tmp_path: Path) -> None:
    data, writing, version = tmp_path / "data", Writing("o", 0), 1
    store = open_store(f"file://{data / 'store'}")
    daemon = start(data)
    # Another one, which nobody kills, writes to the same table.
    beside = start(tmp_path / "beside", id="beside", store=store.url)
    others = Writing("beside", 1_000_000)
    try:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, numbers(0, BATCH), origin="o", metadata=[{"sequence": 1}])
            persist(client, TABLE)
        writing.acknowledged = 1
        writing.begin(daemon.flight)
        others.begin(beside.flight)
        for number in range(2 * STEPS):
            step, forth = number // 2 + 1, number % 2 == 0
            if forth:
                version = push_some(store, TABLE, f"push-{step}", lambda add: add.first_seq == 1)
                move: Callable[[Any], object] = partial(forwards, version)
            else:
                move = partial(backwards, version)
            count = writing.acknowledged + 5
            until(partial(writing.is_past, count), "more is written")
            left = killed_at(step, move, store)
            if number % 3 == 1:
                daemon.kill()
                writing.end()
                daemon = start(data)
                writing.begin(daemon.flight)
            if left:
                brought_to_its_end(store, move, version if forth else 1)
        writing.end()
        others.end()
        assert others.error is None, "nobody killed its daemon"
        assert others.acknowledged > STEPS
        for each in (daemon, beside):
            with fl.connect(each.flight) as client:
                persist(client, TABLE)
        with fl.connect(daemon.flight) as client:
            # A stale look is possible only within manifest.refresh.
            until(lambda: len(rows(client, TABLE)) >= len(writing.rows) + len(others.rows), "all")
            assert Counter(rows(client, TABLE)) == Counter([*writing.rows, *others.rows])
        state = Manifest(store, *TABLE).load()
        assert state.table_version == 1
        assert state.rows == len(writing.rows) + len(others.rows)
        assert daemon.terminate() == beside.terminate() == 0
    finally:
        writing.end()
        others.end()
        daemon.kill()
        beside.kill()


def forwards(version: int, store: Any) -> None:
    """The swap of a push."""
    switch_version(store, *TABLE, version, push_id=f"push-{version}")


def backwards(version: int, store: Any) -> None:
    """Its rollback."""
    roll_back(store, *TABLE, version)
