"""With ``manifest.spark_metadata``, ``spark.read.parquet`` reads committed files only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ingester.spark import compact
from persist.exports import spark_log
from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table, create, events, persist, put, query

pytestmark = pytest.mark.spark

TABLE: Table = ("bare", "t")


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Daemon]:
    settings = {"persist__max_age": "1h", "manifest__spark_metadata": "true"}
    settings["manifest__refresh"] = "100ms"
    with Daemon.start(tmp_path / "data", **settings) as daemon:  # type: ignore[arg-type]
        yield daemon


def data_of(daemon: Daemon, table: Table = TABLE) -> Path:
    return daemon.data_dir / "store" / table[0] / table[1] / "v1" / "data"


def listed(data: Path) -> set[str]:
    """Return the names of the files in the metadata log."""
    log = data / "_spark_metadata" / "9.compact"
    if not log.exists():
        return set()
    return {json.loads(line)["path"].rpartition("/")[2] for line in log.read_text().split("\n")[1:]}


def committed(daemon: Daemon, table: Table = TABLE) -> set[str]:
    state = Manifest(open_store(f"file://{daemon.data_dir / 'store'}"), *table).load()
    return {path.rpartition("/")[2] for path in state.files}


def bare(spark: SparkSession, data: Path) -> list[int]:
    return sorted(row.i for row in spark.read.parquet(f"file://{data}").select("i").collect())


def test_a_bare_read_has_what_is_committed(spark: SparkSession, telling: Daemon) -> None:
    data, url = data_of(telling), f"file://{telling.data_dir / 'store'}"
    with fl.connect(telling.flight) as client:
        for first in (0, 100):
            put(client, TABLE, events(first, 100, days=3))
            persist(client, TABLE)
        until(lambda: listed(data) == committed(telling), "the list of files")
        somewhere = next(data.glob("time_day=*"))
        pq.write_table(pa.Table.from_batches([events(900, 10)]), somewhere / "nobody.parquet")
        assert bare(spark, data) == list(range(200))
        frame = spark.read.parquet(f"file://{data}")
        assert "time_day" in frame.columns
        assert frame.where("time_day = '2026-11-22'").count() == 67

        compact(spark, url, *TABLE)  # the old files stay for a day
        until(lambda: listed(data) == committed(telling), "the list of compacted files")
        assert bare(spark, data) == list(range(200))
        put(client, TABLE, events(200, 50))
    assert telling.terminate() == 0  # the list includes the files of the final flush
    assert listed(data) == committed(telling)
    assert bare(spark, data) == list(range(250))


def test_folders_of_any_text_are_found(spark: SparkSession, telling: Daemon) -> None:
    table, texts = ("bare", "texts"), ["a b", "c%/d", "é+&?#", "x=y:z", "[*]"]
    rows = pa.record_batch({"host": texts, "i": pa.array(range(len(texts)), pa.int64())})
    with fl.connect(telling.flight) as client:
        create(client, table, rows.schema, partition_by=["identity(host)"])
        put(client, table, rows)
        persist(client, table)
    data = data_of(telling, table)
    until(lambda: listed(data) == committed(telling, table), "the list of files")
    found = spark.read.parquet(f"file://{data}").collect()
    assert sorted((row.i, row.host) for row in found) == list(enumerate(texts))


def test_a_lost_list_is_written_again_and_is_none_where_it_was_not_asked_for(
    spark: SparkSession, telling: Daemon
) -> None:
    data = data_of(telling)
    with fl.connect(telling.flight) as client:
        put(client, TABLE, events(0, 10))
        persist(client, TABLE)
        until(lambda: listed(data) == committed(telling), "the list of files")
    telling.kill()
    shutil.rmtree(data / "_spark_metadata")
    with telling.again() as again, fl.connect(again.flight) as client:
        assert query(client, TABLE).num_rows == 10
        until(lambda: listed(data) == committed(again), "the list of files")
        again.kill()
    shutil.rmtree(data / "_spark_metadata")
    with (
        telling.again(manifest__spark_metadata="false") as quiet,
        fl.connect(quiet.flight) as client,
    ):
        put(client, TABLE, events(10, 10))
        persist(client, TABLE)
        assert quiet.terminate() == 0
    assert not (data / "_spark_metadata").exists()


def test_files_of_a_bucket_are_told_as_s3a(telling: Daemon) -> None:
    with fl.connect(telling.flight) as client:
        put(client, TABLE, events(0, 10))
        persist(client, TABLE)
    state = Manifest(open_store(f"file://{telling.data_dir / 'store'}"), *TABLE).load()
    header, line = spark_log(state, "s3a://lake/a prefix/bare/t/v1").decode().split("\n")
    (add,) = state.files.values()
    told = json.loads(line)
    assert (header, told["action"], told["size"]) == ("v1", "add", add.bytes)
    assert told["path"] == f"s3a://lake/a%20prefix/bare/t/v1/{add.path}"


def test_a_table_that_is_gone_ends_no_daemon(telling: Daemon) -> None:
    gone: Table = ("bare", "gone")
    with fl.connect(telling.flight) as client:
        for table in (TABLE, gone):
            put(client, table, events(0, 10))
            persist(client, table)
        shutil.rmtree(telling.data_dir / "store" / "bare" / "gone")

        def told() -> bool:
            said = telling.stderr_file.read_text()
            return "manifest refresh failed" in said and '"gone"' in said

        until(told, "a word of the table that is gone")
        put(client, TABLE, events(10, 10))
        persist(client, TABLE)
        until(lambda: listed(data_of(telling)) == committed(telling), "the list of files")
    assert telling.process.poll() is None
