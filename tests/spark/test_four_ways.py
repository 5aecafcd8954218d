"""Eight clients write while the daemon is killed: four readers return each row exactly once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.client import Client, ClientError, RetryPolicy
from ingester.spark import compact, read_table, register
from ingester.spark.versions import LIMITS_BATCHES
from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table, events

WRITERS = 8
BATCHES = 40
ROWS = 50
"""In each batch."""
KILLS_AT = (0.2, 0.5, 0.8)
"""As shares of the acknowledged batches."""
TABLE: Table = ("four", "ways")
NO_PATIENCE = RetryPolicy(for_s=0.5)


def batch_of(writer: int, number: int) -> pa.RecordBatch:
    return events((number * WRITERS + writer) * ROWS, ROWS, days=3)


class Writer(threading.Thread):
    """Writes its batches in order and repeats each unacknowledged batch with the same id."""

    def __init__(self, number: int, endpoint: list[str]) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.number = number
        self.done = 0
        self._endpoint = endpoint  # a list of one, replaced when the daemon restarts

    def run(self) -> None:
        while self.done < BATCHES:
            try:
                self._write()
            except ClientError:
                time.sleep(0.05)  # until the next daemon listens

    def _write(self) -> None:
        with Client(self._endpoint[0], retry=NO_PATIENCE) as client:
            before, schema = self.done, batch_of(0, 0).schema
            writer = client.writer(
                *TABLE, schema, origin=f"writer-{self.number}", first_sequence=before + 1
            )
            try:
                for number in range(before, BATCHES):
                    # The client writes slowly, so that kills fall between its writes.
                    writer.write(batch_of(self.number, number)).result()
                    self.done = number + 1
                writer.close()
            finally:
                writer.abort()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> str:
    """The store's URL, after all writes and kills."""
    folder = tmp_path_factory.mktemp("four")
    daemon = Daemon.start(folder / "data", persist__max_age="300ms")
    url = f"file://{daemon.data_dir / 'store'}"
    endpoint = [daemon.flight]
    writers = [Writer(number, endpoint) for number in range(WRITERS)]
    try:
        for writer in writers:
            writer.start()
        for share in KILLS_AT:
            wanted = share * WRITERS * BATCHES
            until(lambda: sum(w.done for w in writers) >= wanted, f"{wanted} batches")  # noqa: B023
            daemon.kill()
            daemon = daemon.again()
            endpoint[0] = daemon.flight
        for writer in writers:
            writer.join(60)
        assert [writer.done for writer in writers] == [BATCHES] * WRITERS
        with Client(daemon.flight) as client:
            client.persist(*TABLE)
        compact(spark, url, *TABLE, target_file_bytes=20_000, filter="time < '2026-11-22'")
    finally:
        daemon.kill()
    return url


@pytest.fixture(scope="module")
def written() -> list[tuple[object, ...]]:
    """All written rows, ordered by number."""
    batches = [batch_of(w, n) for n in range(BATCHES) for w in range(WRITERS)]
    return _rows(pa.Table.from_batches(batches))


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    table = table.select(["time", "host", "v", "i"]).sort_by("i")
    table = table.set_column(0, "time", table["time"].cast(pa.timestamp("us", "UTC")))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _of_spark(frame: DataFrame) -> list[tuple[object, ...]]:
    return _rows(frame.toArrow())


pytestmark = pytest.mark.spark


def test_native(spark: SparkSession, lake: str, written: list[tuple[object, ...]]) -> None:
    assert _of_spark(read_table(spark, lake, *TABLE, reader="native")) == written


def test_data_source(spark: SparkSession, lake: str, written: list[tuple[object, ...]]) -> None:
    register(spark)
    path = f"{lake}/{TABLE[0]}/{TABLE[1]}"
    assert _of_spark(spark.read.format("ingester").load(path)) == written


def test_stream(
    spark: SparkSession, lake: str, written: list[tuple[object, ...]], tmp_path: Path
) -> None:
    register(spark)
    source = spark.readStream.format("ingester")
    if LIMITS_BATCHES:
        source = source.option("max_files_per_trigger", 5)
    rows = source.load(f"{lake}/{TABLE[0]}/{TABLE[1]}")
    out = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    out.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert _of_spark(spark.read.parquet(str(tmp_path / "out"))) == written


def test_pyarrow_on_the_manifest(lake: str, written: list[tuple[object, ...]]) -> None:
    manifest = Manifest(open_store(lake), *TABLE)
    state = manifest.load()
    kinds = {add.kind for add in state.files.values()}
    assert kinds == {"persist", "rewrite"}  # some files are compacted, others are as flushed
    root = Path(lake.removeprefix("file://")) / manifest.root
    files = [pq.ParquetFile(root / path).read() for path in state.files]
    assert _rows(pa.concat_tables(files)) == written
    assert state.rows == len(written)
