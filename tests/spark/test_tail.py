"""Buffered rows beside a version's files: each acknowledged row once, also while persists run."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.spark import TailStale, TailUnavailable, read_table
from ingester.spark.reading import ATTEMPTS
from tests.daemon import Daemon
from tests.integration.wire import (
    DAY_US,
    NOON_US,
    Stream,
    Table,
    create,
    describe,
    numbers,
    persist,
    put,
    writing,
)

pytestmark = pytest.mark.spark

READS = 6
PERSISTS_PER_READ = 4
"""Back to back, from when the read begins: some lie between its version and its tail."""
BATCH_ROWS = 30


class Writer:
    """Writes rows 0, 1, 2, … of its own until told to stop; knows how many were acknowledged."""

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
    """Rows of three days, so that one batch is in three partitions."""
    ids = range(first, first + BATCH_ROWS)
    return pa.record_batch(
        {
            "time": pa.array([NOON_US + i % 3 * DAY_US for i in ids], pa.timestamp("us")),
            "writer": pa.array([writer] * BATCH_ROWS),
            "i": pa.array(ids, pa.int64()),
        }
    )


class Persister:
    """Persists a few times each time it is told to go."""

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
    # Else this has tested nothing: versions went by, and there were buffered rows.
    assert len(versions) > 1
    assert buffered_rows > 0


def check_rows(rows: pa.Table, before: list[int], after: list[int]) -> None:
    for name, (least, most) in enumerate(zip(before, after, strict=True)):
        ids = np.sort(rows.filter(pc.equal(rows["writer"], name))["i"].to_numpy())
        assert np.array_equal(ids, np.arange(len(ids)))
        assert least <= len(ids) <= most
    assert pc.all(pc.equal(rows["time"].cast(pa.date32()), rows["time_day"])).as_py()


def test_several_daemons_of_one_table_are_added_up(
    spark: SparkSession, daemon: Daemon, url: str, table: Table, tmp_path: Path
) -> None:
    with Daemon.start(tmp_path / "second", id="second", store=url) as second:
        with fl.connect(daemon.flight) as one, fl.connect(second.flight) as two:
            put(one, table, numbers(0, 10))
            persist(one, table)
            put(two, table, numbers(10, 10))
            put(one, table, numbers(20, 10))
        endpoints = [daemon.flight, second.flight]
        both = read_table(spark, url, *table, endpoint=endpoints)
        first = read_table(spark, url, *table, endpoint=endpoints[:1])
    assert sorted(row.i for row in both.collect()) == list(range(30))
    assert sorted(row.i for row in first.collect()) == [*range(10), *range(20, 30)]


def test_an_older_version_and_its_tail_are_all_rows(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    old = persist(client, table)
    put(client, table, numbers(10, 10, s=pa.array(["new"] * 10)))
    persist(client, table)
    put(client, table, numbers(20, 10))

    frame = read_table(spark, url, *table, old, endpoint=daemon.flight)
    assert sorted(row.i for row in frame.collect()) == list(range(30))
    # The version did not know the column that later rows have.
    assert frame.where("s = 'new'").count() == 10
    named = read_table(spark, url, *table, old, endpoint=daemon.flight, columns=["s"])
    assert Counter(row.s for row in named.collect()) == {"new": 10, None: 20}


def test_keyed_tables_show_the_last_row_of_each_key(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema({"a": pa.string(), "b.c": pa.int64(), "v": pa.int64()})
    create(client, table, schema, primary_key=["a", "b.c"], partition_by=["identity(a)"])

    def write(value: int, *keys: tuple[str, int]) -> None:
        rows = [(a, b, value) for a, b in keys]
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        put(client, table, pa.record_batch(arrays, names=schema.names))

    write(1, ("x", 1), ("x", 2), ("y", 1), ("", 1))
    old = persist(client, table)
    write(2, ("x", 2), ("z", 1))
    persist(client, table)
    write(3, ("y", 1), ("z", 1), ("", 1))
    write(4, ("y", 1))

    expected = [("", 1, 3), ("x", 1, 1), ("x", 2, 2), ("y", 1, 4), ("z", 1, 3)]
    for version in (None, old):
        frame = read_table(spark, url, *table, version, endpoint=daemon.flight)
        assert frame.columns == [*schema.names, "a_key"]
        rows = sorted(tuple(row) for row in frame.select("a", "`b.c`", "v").collect())
        assert rows == expected
        assert frame.where(F.col("a_key") == "y").count() == 1
    values = read_table(spark, url, *table, endpoint=daemon.flight, columns=["v"])
    assert sorted(row.v for row in values.collect()) == [1, 2, 3, 3, 4]


def test_a_stale_version_is_pinned_in_vain(
    spark: SparkSession, tmp_path: Path, table: Table
) -> None:
    with (
        Daemon.start(tmp_path / "d", query__tail_retain="0s") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, numbers(0, 10))
        old = persist(client, table)
        put(client, table, numbers(10, 10))
        persist(client, table)
        url = f"file://{daemon.data_dir / 'store'}"
        with pytest.raises(TailStale, match=f"version {old}") as caught:
            read_table(spark, url, *table, old, endpoint=daemon.flight)
        newest = read_table(spark, url, *table, endpoint=daemon.flight)
        assert newest.count() == 20
    assert caught.value.code == "stale"


class Front(fl.FlightServerBase):  # type: ignore[misc]
    """Stands before a daemon. Before each answer it has another row written and persisted there.

    It finds the first ``stale`` questions too late.
    """

    def __init__(self, daemon: Daemon, table: Table, stale: int) -> None:
        self.asked: list[int] = []
        self._daemon = daemon
        self._table = table
        self._stale = stale
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> Any:
        self.asked.append(json.loads(ticket.ticket)["version"])
        with fl.connect(self._daemon.flight) as client:
            put(client, self._table, numbers(100 + len(self.asked), 1))
            persist(client, self._table)
            if len(self.asked) <= self._stale:
                extra = json.dumps({"code": "stale", "message": "too old", "retry_after_s": 0.0})
                raise fl.FlightUnavailableError("too old", extra.encode())
            return fl.RecordBatchStream(client.do_get(ticket).read_all())


@pytest.fixture
def fronts() -> Iterator[list[Front]]:
    opened: list[Front] = []
    yield opened
    for front in opened:
        front.shutdown()


def test_rows_persisted_between_a_version_and_its_tail_are_in_the_tail(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    fronts: list[Front],
) -> None:
    put(client, table, numbers(0, 10))
    persist(client, table)
    put(client, table, numbers(10, 10))
    fronts.append(Front(daemon, table, stale=0))
    frame = read_table(spark, url, *table, endpoint=f"grpc://127.0.0.1:{fronts[0].port}")
    assert sorted(row.i for row in frame.collect()) == [*range(20), 101]


def test_a_version_that_goes_stale_while_it_is_loaded_is_loaded_anew(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    fronts: list[Front],
) -> None:
    put(client, table, numbers(0, 10))
    persist(client, table)
    put(client, table, numbers(10, 10))
    front = Front(daemon, table, stale=2)
    fronts.append(front)
    frame = read_table(
        spark, url, *table, endpoint=[daemon.flight, f"grpc://127.0.0.1:{front.port}"]
    )
    # Both ends are the same daemon: a row that an answer for a stale version left would be double.
    assert sorted(row.i for row in frame.collect()) == [*range(20), 101, 102, 103]
    assert len(front.asked) == 3
    assert front.asked == sorted(set(front.asked))

    never = Front(daemon, table, stale=1000)
    fronts.append(never)
    with pytest.raises(TailStale):
        read_table(spark, url, *table, endpoint=f"grpc://127.0.0.1:{never.port}")
    assert len(never.asked) == ATTEMPTS


def test_a_daemon_that_is_not_there_is_named(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(TailUnavailable, match=r"grpc://127\.0\.0\.1:1: ") as caught:
        read_table(spark, url, *table, endpoint="grpc://127.0.0.1:1")
    assert caught.value.code is None


def test_buffered_rows_are_those_of_the_call(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, numbers(0, 10))
    frame = read_table(spark, url, *table, endpoint=daemon.flight)
    put(client, table, numbers(10, 10))
    persist(client, table)
    assert frame.count() == 10
    assert describe(client, table)["buffered"]["rows"] == 0
