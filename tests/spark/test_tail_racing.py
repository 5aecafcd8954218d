"""Reads while writers write and flushes run: each read has each acknowledged row once."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import DAY_US, NOON_US, Stream, Table, persist, put, writing

pytestmark = pytest.mark.spark

READS = 6
PERSISTS_PER_READ = 4
"""Back to back from the start of the read: some run between its version and its tail."""
BATCH_ROWS = 30


class Writer:
    """Writes rows 0, 1, 2, … of its own until told to stop, and counts the acknowledged ones."""

    def __init__(self, flight: str, table: Table, name: int) -> None:
        self.acknowledged = 0
        self.sent = 0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._where = (flight, table, name)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        flight, table, name = self._where
        try:
            with fl.connect(flight) as client:
                schema = batch_of(name, 0).schema
                with Stream(client, writing(table), schema) as stream:
                    while not self.stopping.is_set():
                        self.sent += BATCH_ROWS
                        stream.write(batch_of(name, self.acknowledged))
                        self.acknowledged += BATCH_ROWS
        except BaseException as exc:
            self.failure = exc


def batch_of(writer: int, first: int) -> pa.RecordBatch:
    """Return rows of three days, so that one batch spans three partitions."""
    ids = range(first, first + BATCH_ROWS)
    return pa.record_batch(
        {
            "time": pa.array([NOON_US + i % 3 * DAY_US for i in ids], pa.timestamp("us")),
            "writer": pa.array([writer] * BATCH_ROWS),
            "i": pa.array(ids, pa.int64()),
        }
    )


class Persister:
    """Flushes a few times for each request."""

    def __init__(self, flight: str, table: Table) -> None:
        self._go = threading.Semaphore(0)
        self._stopping = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(flight, table))
        self._thread.start()

    def go(self) -> None:
        self._go.release()

    def stop(self) -> None:
        self._stopping = True
        self._go.release()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self, flight: str, table: Table) -> None:
        try:
            with fl.connect(flight) as client:
                while self._go.acquire() and not self._stopping:
                    for _ in range(PERSISTS_PER_READ):
                        persist(client, table)
        except BaseException as exc:
            self.failure = exc


def test_each_read_has_every_acknowledged_row_once_while_persists_run(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, batch_of(9, 0))
    persister = Persister(daemon.flight, table)
    writers = [Writer(daemon.flight, table, name) for name in range(2)]
    versions, buffered_rows = set(), 0
    try:
        for _ in range(READS):
            persister.go()
            before = [writer.acknowledged for writer in writers]
            frame = read_table(spark, url, *table, endpoint=daemon.flight)
            after = [writer.sent for writer in writers]
            rows = frame.select("writer", "i", "time", "time_day").toArrow()
            check_rows(rows, before, after)
            files = [file.removeprefix("file:///") for file in frame.inputFiles()]
            versions.add(tuple(files))
            buffered_rows += rows.num_rows - sum(pq.read_metadata(f"/{f}").num_rows for f in files)
    finally:
        persister.stop()
        for writer in writers:
            writer.stop()
    # Otherwise nothing was tested: new versions and buffered rows must have occurred.
    assert len(versions) > 1
    assert buffered_rows > 0


def check_rows(rows: pa.Table, before: list[int], after: list[int]) -> None:
    for name, (least, most) in enumerate(zip(before, after, strict=True)):
        ids = np.sort(rows.filter(pc.equal(rows["writer"], name))["i"].to_numpy())
        assert np.array_equal(ids, np.arange(len(ids)))
        assert least <= len(ids) <= most
    assert pc.all(pc.equal(rows["time"].cast(pa.date32()), rows["time_day"])).as_py()
