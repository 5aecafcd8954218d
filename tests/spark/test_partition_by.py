"""``rewrite(partition_by=…)`` changes the folders and keeps the rows for every reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark import compact, read_table, register, rewrite
from persist.compaction import CompactionReport
from persist.compaction import run as compaction_run
from persist.exports import has_one_layout
from persist.manifest import Manifest, TableState, verify
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, describe, events, persist, put, query, rows

pytestmark = pytest.mark.spark


def folders(url: str, table: Table) -> set[str]:
    files = Manifest(open_store(url), *table).load().files
    return {path.removeprefix("data").rpartition("/")[0].lstrip("/") for path in files}


def of_spark(frame: DataFrame) -> list[int]:
    return sorted(row.i for row in frame.select("i").collect())


def assert_all_read(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, wanted: list[int]
) -> None:
    """Assert that every reader of files returns these rows and the columns of the current spec."""
    register(spark)
    path = f"{url}/{table[0]}/{table[1]}"

    def load(**options: str) -> DataFrame:
        return spark.read.format("ingester").options(**options).load(path)

    of_files = [
        read_table(spark, url, *table, reader="native"),
        read_table(spark, url, *table, reader="arrow"),
        load(),
    ]
    for frame in of_files:
        assert frame.columns == ["time", "host", "v", "i", "time_hour", "host_key"]
        found = frame.select("i", "host", "time_hour", "host_key").collect()
        assert sorted(row.i for row in found) == wanted
        assert all(row.time_hour == f"2026-11-{21 + row.i % 3}-00" for row in found)
        assert all(row.host_key == row.host == f"h{row.i % 7}" for row in found)
    only = load(columns="host_key")
    assert sorted(row.host_key for row in only.collect()) == sorted(f"h{i % 7}" for i in wanted)
    none = load(columns="")
    assert none.count() == len(wanted)
    some = "time >= '2026-11-22' and host = 'h3'"
    asked = sorted(i for i in wanted if i % 3 > 0 and i % 7 == 3)
    assert of_spark(read_table(spark, url, *table, filter=some)) == asked
    assert of_spark(load(filter=some)) == asked
    buffered = len(rows(client, table)) - len(wanted)
    assert rows(client, table) == list(range(len(wanted) + buffered))
    for column, value in (("host", "h3"), ("i", 5)):
        found = query(client, table, filter=[[[column, "=", value]]])["i"].to_pylist()
        everything = range(len(wanted) + buffered)
        kept = [i for i in everything if (f"h{i % 7}" if column == "host" else i) == value]
        assert sorted(found) == kept


def test_files_move_into_other_folders_while_the_daemon_writes(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 300, days=3))
    persist(client, table)
    put(client, table, events(300, 300, days=3))  # in buffers, by day
    report = rewrite(spark, url, *table, partition_by=["hour(time)", "identity(host)"])
    assert (report.rows, report.files_after, report.left) == (300, 21, 0)
    by_hours = {
        f"time_hour=2026-11-{day}-00/host_key=h{n}" for day in (21, 22, 23) for n in range(7)
    }
    assert folders(url, table) == by_hours
    assert_all_read(spark, client, url, table, list(range(300)))
    # Buffered rows keep their old folders; later rows go to folders by hour.
    persist(client, table)
    assert folders(url, table) == by_hours | {f"time_day=2026-11-{day}" for day in (21, 22, 23)}
    assert describe(client, table)["partition_by"] == ["hour(time)", "identity(host)"]
    put(client, table, events(600, 300, days=3))
    persist(client, table)
    assert len(Manifest(open_store(url), *table).load().files) == 21 + 3 + 21
    assert_all_read(spark, client, url, table, list(range(900)))
    compact(spark, url, *table)
    assert folders(url, table) == by_hours
    assert_all_read(spark, client, url, table, list(range(900)))
    assert verify(Manifest(open_store(url), *table)).findings == ()


def test_the_tail_and_a_stream_go_on_over_a_change(
    spark: SparkSession,
    client: fl.FlightClient,
    daemon: Daemon,
    url: str,
    table: Table,
    tmp_path: Path,
) -> None:
    register(spark)
    put(client, table, events(0, 60, days=3))
    persist(client, table)
    source = spark.readStream.format("ingester").option("columns", "i,time")
    writer = (
        source.load(f"{url}/{table[0]}/{table[1]}")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )

    def stream() -> list[int]:
        writer.start(str(tmp_path / "out")).awaitTermination(120)
        return of_spark(spark.read.parquet(str(tmp_path / "out")))

    assert stream() == list(range(60))
    put(client, table, events(60, 60, days=3))
    rewrite(spark, url, *table, partition_by=[])
    assert folders(url, table) == {""}
    tail = read_table(spark, url, *table, endpoint=daemon.flight)
    assert of_spark(tail) == list(range(120))
    assert tail.columns == ["time", "host", "v", "i"]
    persist(client, table)
    put(client, table, events(120, 60, days=3))
    persist(client, table)
    assert folders(url, table) == {"", *(f"time_day=2026-11-{day}" for day in (21, 22, 23))}
    assert stream() == list(range(180))
    # The first spec again: its files and those of the third spec share folders.
    rewrite(spark, url, *table, partition_by=["day(time)"])
    assert of_spark(read_table(spark, url, *table, reader="native")) == list(range(180))
    assert stream() == list(range(180))


def test_a_rewrite_that_ends_in_the_midst_goes_on_when_it_is_called_again(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    for number in range(4):
        put(client, table, events(100 * number, 100, days=3))
        persist(client, table)

    def stop(report: CompactionReport, done: int, planned: int) -> None:
        raise KeyboardInterrupt

    wanted = ["hour(time)", "identity(host)"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction_run, "WAVE_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            rewrite(spark, url, *table, partition_by=wanted, target_file_bytes=1, progress=stop)
    assert len({path.count("=") for path in folders(url, table)}) == 2
    assert_all_read(spark, client, url, table, list(range(400)))
    before = Manifest(open_store(url), *table).load()
    report = rewrite(spark, url, *table, partition_by=wanted)
    left = sum(add.rows for add in before.files.values() if add.spec_id == 1)
    assert 0 < left < 400
    assert report.left == 0
    assert left <= report.rows < left + 400  # the rest was only merged with the moved rows
    after = Manifest(open_store(url), *table).load()
    assert after.current_spec == before.current_spec
    assert {add.spec_id for add in after.files.values()} == {2}
    assert_all_read(spark, client, url, table, list(range(400)))


def test_partitions_that_become_fewer_are_packed(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, partition_by=["identity(host)", "day(time)"])
    put(client, table, events(0, 210, days=3))
    persist(client, table)
    assert len(folders(url, table)) == 21
    report = rewrite(spark, url, *table, partition_by=["month(time)"])
    assert (report.files_before, report.files_after, report.commits) == (21, 1, 1)
    assert folders(url, table) == {"time_month=2026-11"}
    assert rows(client, table) == list(range(210))


def test_a_value_that_can_be_no_folder_stays_where_it_is_and_is_read(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, partition_by=["day(time)"])
    long = events(10, 1).set_column(1, "host", pa.array(["ü" * 100]))
    for batch in (events(0, 10, days=2), long):
        put(client, table, batch)
        persist(client, table)
    report = rewrite(spark, url, *table, partition_by=["identity(host)"], target_file_bytes=1)
    assert (report.left, "has 600 bytes as a folder name" in str(report.refused)) == (1, True)
    assert {folder.partition("=")[0] for folder in folders(url, table)} == {"host_key", "time_day"}
    assert compact(spark, url, *table).left == 1
    register(spark)
    for frame in (
        read_table(spark, url, *table),
        spark.read.format("ingester").load(f"{url}/{table[0]}/{table[1]}"),
    ):
        found = {row.i: row.host_key for row in frame.select("i", "host_key").collect()}
        assert found == {i: f"h{i % 7}" for i in range(10)} | {10: "ü" * 100}
    assert rows(client, table) == list(range(11))


def test_the_list_for_spark_itself_waits_until_all_files_lie_in_one_way(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 20, days=2))
    persist(client, table)
    put(client, table, events(20, 20, days=2))
    rewrite(spark, url, *table, partition_by=["hour(time)"])
    assert has_one_layout(load(url, table))
    persist(client, table)
    assert not has_one_layout(load(url, table))
    compact(spark, url, *table)
    assert has_one_layout(load(url, table))


def test_a_killed_daemon_finds_rows_of_both_specs_in_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ("ns", "t")
    with Daemon.start(tmp_path / "d", persist__max_age="1h") as daemon:
        url = f"file://{daemon.data_dir / 'store'}"
        with fl.connect(daemon.flight) as client:
            put(client, table, events(0, 30, days=3))
            persist(client, table)
            put(client, table, events(30, 30, days=3))
            rewrite(spark, url, *table, partition_by=["hour(time)", "identity(host)"])
            # The daemon learns of a new version when it looks for other writers' commits.
            assert (
                query(client, table, scope="buffered", version=load(url, table).version).num_rows
                == 30
            )
            put(client, table, events(60, 30, days=3))
            assert describe(client, table)["buffered"]["partitions"] == 3 + 21
        daemon.kill()
        with daemon.again() as again, fl.connect(again.flight) as client:
            assert rows(client, table) == list(range(90))
            persist(client, table)
            assert_all_read(spark, client, url, table, list(range(90)))
            compact(spark, url, *table)
            assert_all_read(spark, client, url, table, list(range(90)))


def load(url: str, table: Table) -> TableState:
    return Manifest(open_store(url), *table).load()
