"""Swaps and rollbacks under a stream of writes; pushers and daemons are killed at any step.

A push has the rows of the current version as of its start. Rows streamed before the swap are
carried over, and rows streamed after it are carried back by a rollback. After each step, the
current version has every acknowledged row exactly once; at the end that is version 1.
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
import pytest

from persist.manifest import Manifest
from persist.store import ObjectStore, PutInfo, open_store
from persist.switching import roll_back, switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import Killed, KillingStore, push_some
from tests.drivers.waiting import until
from tests.drivers.wire import Table, create, numbers, persist, put, query, rows

TABLE: Table = ("n", "t")
SCHEMA = pa.schema([("i", pa.int64()), ("v", pa.int64())])
BATCH = 10
STEPS = 6
"""A switch makes five changes in the store, besides the files that it carries over."""


class Writing:
    """A client that sends batches of an origin, and repeats those that were not acknowledged.

    In a keyed table the last row of a batch changes one of the batch before.
    """

    def __init__(self, origin: str, first: int, *, keyed: bool = False) -> None:
        self.acknowledged = 0
        self.error: Exception | None = None
        self._keyed = keyed
        self._origin = origin
        self._first = first
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, flight: str) -> None:
        """Continue writing to the daemon that runs now, until it ends."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(flight,))
        self._thread.start()

    def end(self) -> None:
        """Stop writing, and wait for the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def batch(self, sequence: int) -> pa.RecordBatch:
        """The rows of that number."""
        first = self._first + (sequence - 1) * BATCH
        values = pa.array([sequence] * BATCH, pa.int64())
        if not self._keyed or sequence == 1:
            return numbers(first, BATCH, v=values)
        keys = [*range(first, first + BATCH - 1), first - BATCH]
        return pa.record_batch([pa.array(keys, pa.int64()), values], schema=SCHEMA)

    def rows(self, count: int) -> dict[int, int]:
        """The rows of the first ``count`` batches: ``v`` by ``i``."""
        found: dict[int, int] = {}
        for sequence in range(1, count + 1):
            columns = self.batch(sequence).to_pydict()
            found |= dict(zip(columns["i"], columns["v"], strict=True))
        return found

    def is_past(self, count: int) -> bool:
        """Whether that number of batches is acknowledged."""
        return self.acknowledged > count

    def _run(self, flight: str) -> None:
        try:
            with fl.connect(flight) as client:
                while not self._stop.is_set():
                    sequence = self.acknowledged + 1
                    told = [{"sequence": sequence}]
                    batch = self.batch(sequence)
                    put(client, TABLE, batch, origin=self._origin, metadata=told)
                    self.acknowledged = sequence
                    if sequence % 4 == 0:
                        persist(client, TABLE)
        except (fl.FlightError, pa.ArrowException, OSError) as exc:
            self.error = exc  # the daemon was killed


class KillingBesideFiles(KillingStore):
    """Counts changes to manifests and to the current version, but not to data files."""

    def put(self, path: str, data: Any) -> PutInfo:
        return self._inner.put(path, data) if "/data/" in path else super().put(path, data)


def killed_at(step: int, move: Callable[[Any], object], store: ObjectStore) -> bool:
    """Whether a move was killed at this step: after the change if even, before it if odd."""
    kind = KillingBesideFiles if step < STEPS else KillingStore
    killing: Any = kind(store, step, done=step % 2 == 0)
    try:
        move(killing)
    except Killed:
        return True
    return False


def brought_to_its_end(store: ObjectStore, move: Callable[[Any], object], target: int) -> None:
    """A move that was interrupted: the daemon completes a sealed one, others are repeated."""
    manifest = Manifest(store, *TABLE)
    if manifest.table_version != target and manifest.load().sealed is None:
        move(store)
    until(lambda: Manifest(store, *TABLE).table_version == target, f"version {target} counts")


def start(data: Path, **settings: Any) -> Daemon:
    """A daemon that flushes on request and looks for other processes' commits all the time."""
    return Daemon.start(data, persist__max_age="1h", manifest__refresh="10ms", **settings)


def check(daemon: Daemon, writing: Writing, *, keyed: bool) -> None:
    """A query returns every row acknowledged before it exactly once, in its newest version."""
    count = writing.acknowledged
    with fl.connect(daemon.flight) as client:
        columns = query(client, TABLE).to_pydict()
    assert all(times == 1 for times in Counter(columns["i"]).values())
    found = dict(zip(columns["i"], columns["v"], strict=True))
    for key, value in writing.rows(count).items():
        assert found[key] == value or (keyed and found[key] > value), f"row {key}"


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
def test_each_acknowledged_row_is_in_the_version_that_counts_once(
    tmp_path: Path, keyed: bool
) -> None:
    data, writing, version = tmp_path / "data", Writing("o", 0, keyed=keyed), 1
    store = open_store(f"file://{data / 'store'}")
    daemon = start(data)
    # Another daemon, which is never killed, writes to the same table; a keyed table has one writer.
    beside = start(tmp_path / "beside", id="beside", store=store.url)
    others = Writing("beside", 1_000_000)
    try:
        with fl.connect(daemon.flight) as client:
            create(client, TABLE, SCHEMA, primary_key=["i"] if keyed else [])
            put(client, TABLE, writing.batch(1), origin="o", metadata=[{"sequence": 1}])
            persist(client, TABLE)
        writing.acknowledged = 1
        writing.begin(daemon.flight)
        if not keyed:
            others.begin(beside.flight)
        for number in range(2 * STEPS):
            step, forth = number // 2 + 1, number % 2 == 0
            if forth:
                state = Manifest(store, *TABLE).load()
                version = push_some(store, TABLE, f"push-{step}", state=state)
                move: Callable[[Any], object] = partial(forwards, version, state.version)
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
            check(daemon, writing, keyed=keyed)
        writing.end()
        others.end()
        expected = writing.rows(writing.acknowledged) | others.rows(others.acknowledged)
        assert others.error is None, "nobody killed its daemon"
        assert keyed or others.acknowledged > STEPS
        for each in (daemon, beside):
            with fl.connect(each.flight) as client:
                persist(client, TABLE)
        with fl.connect(daemon.flight) as client:
            # A stale read is possible only within manifest.refresh.
            until(lambda: len(rows(client, TABLE)) >= len(expected), "all")
            columns = query(client, TABLE).to_pydict()
        assert Counter(zip(columns["i"], columns["v"], strict=True)) == Counter(expected.items())
        state = Manifest(store, *TABLE).load()
        assert (state.table_version, state.rows) == (1, len(expected))
        assert daemon.terminate() == beside.terminate() == 0
    finally:
        writing.end()
        others.end()
        daemon.kill()
        beside.kill()


def forwards(version: int, since: int, store: Any) -> None:
    """The swap of a push."""
    switch_version(store, *TABLE, version, push_id=f"push-{version}", since=since, previous=1)


def backwards(version: int, store: Any) -> None:
    """Its rollback."""
    roll_back(store, *TABLE, version)
