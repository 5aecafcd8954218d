"""rewrite(partition_by=…): the same rows in other folders, one version, and daemons that go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ingester.spark import (
    WriteRefused,
    compact,
    compaction_run,
    read_table,
    register,
    repartitioning,
    rewrite,
)
from persist.manifest import Manifest
from persist.partitioning import InvalidPartitionSpec
from persist.store import open_store
from tests.daemon import Daemon
from tests.integration.wire import Table, create, describe, events, persist, put, query

pytestmark = pytest.mark.spark

TABLE: Table = ("anew", "t")
ROWS = 300
BY = ["identity(host)", "month(time)"]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that has written six days and was stopped."""
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            for first in range(0, ROWS, 100):
                put(client, TABLE, events(first, 100, days=6))
                persist(client, TABLE)
        assert daemon.terminate() == 0
        yield daemon


def url_of(daemon: Daemon) -> str:
    return f"file://{daemon.data_dir / 'store'}"


def numbers_of(spark: SparkSession, url: str, **options: object) -> list[int]:
    frame = read_table(spark, url, *TABLE, **options)  # type: ignore[arg-type]
    return sorted(row.i for row in frame.select("i").collect())


def test_rows_move_to_new_folders_and_every_reader_follows(
    spark: SparkSession, stopped: Daemon
) -> None:
    url = url_of(stopped)
    before = Manifest(open_store(url), *TABLE).load()
    report = rewrite(spark, url, *TABLE, partition_by=BY)
    after = Manifest(open_store(url), *TABLE).load()
    assert (report.version, report.commits, report.rows) == (before.version + 1, 1, ROWS)
    assert (report.files_before, report.files_after) == (18, len(after.files))
    hosts = {f"host_key=h{number}" for number in range(7)}
    assert {path.split("/")[1] for path in after.files} == hosts
    assert {add.spec_id for add in after.files.values()} == {2}

    readers: list[Any] = ["native", "arrow"]
    for reader in readers:
        frame = read_table(spark, url, *TABLE, reader=reader)
        assert frame.columns == ["time", "host", "v", "i", "host_key", "time_month"]
        wanted = sorted(i for i in range(ROWS) if i % 7 == 3)
        assert sorted(r.i for r in frame.where("host = 'h3'").collect()) == wanted
        assert numbers_of(spark, url, reader=reader) == list(range(ROWS))
        assert numbers_of(spark, url, reader=reader, version=before.version) == list(range(ROWS))
        assert numbers_of(spark, url, reader=reader, filter="host = 'h3'") == wanted
    old = read_table(spark, url, *TABLE, version=before.version)
    assert old.columns == ["time", "host", "v", "i", "time_day"]
    register(spark)
    path = f"{url}/{TABLE[0]}/{TABLE[1]}"
    assert spark.read.format("ingester").load(path).count() == ROWS


def test_the_daemon_goes_on_in_the_new_folders(spark: SparkSession, stopped: Daemon) -> None:
    url = url_of(stopped)
    with stopped.again() as daemon, fl.connect(daemon.flight) as client:
        old = Manifest(open_store(url), *TABLE).load().version
        assert query(client, TABLE).num_rows == ROWS  # open here, and read only
        rewrite(spark, url, *TABLE, partition_by=BY)
        # What the daemon knew when it began is not what it writes by.
        put(client, TABLE, events(ROWS, 70, days=6))
        assert describe(client, TABLE)["partition_by"] == BY
        assert sorted(query(client, TABLE)["i"].to_pylist()) == list(range(ROWS + 70))
        assert query(client, TABLE, scope="version", version=old).num_rows == ROWS
        with pytest.raises(fl.FlightUnavailableError, match="partitioned anew after version"):
            query(client, TABLE, scope="buffered", version=old)
        assert numbers_of(spark, url, endpoint=daemon.flight) == list(range(ROWS + 70))
        persist(client, TABLE)
        state = Manifest(open_store(url), *TABLE).load()
        assert {add.spec_id for add in state.files.values()} == {2}
        assert numbers_of(spark, url) == list(range(ROWS + 70))

        put(client, TABLE, events(ROWS + 70, 30, days=6))
        with pytest.raises(WriteRefused, match=r"daemon 'tested' .* has the table open"):
            rewrite(spark, url, *TABLE, partition_by=["day(time)"])
        daemon.kill()
    with pytest.raises(WriteRefused, match="has the table open"):
        rewrite(spark, url, *TABLE, partition_by=["day(time)"])
    with stopped.again() as daemon, fl.connect(daemon.flight) as client:
        assert query(client, TABLE).num_rows == ROWS + 100
        assert daemon.terminate() == 0
    rewrite(spark, url, *TABLE, partition_by=["day(time)"])
    assert numbers_of(spark, url) == list(range(ROWS + 100))
    compact(spark, url, *TABLE)
    assert numbers_of(spark, url) == list(range(ROWS + 100))


def test_a_stream_goes_on_behind_it_and_not_over_it(
    spark: SparkSession, stopped: Daemon, tmp_path: Path
) -> None:
    register(spark)
    url = url_of(stopped)
    path = f"{url}/{TABLE[0]}/{TABLE[1]}"

    def run(name: str, **options: object) -> list[int]:
        named = {key: str(value) for key, value in options.items()}
        rows = spark.readStream.format("ingester").options(columns="i", **named).load(path)
        out = rows.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/{name}c")
        out.trigger(availableNow=True).start(f"{tmp_path}/{name}").awaitTermination()
        return sorted(row.i for row in spark.read.parquet(f"{tmp_path}/{name}").collect())

    assert run("a") == list(range(ROWS))
    rewrite(spark, url, *TABLE, partition_by=BY)
    assert run("a") == list(range(ROWS))  # the new files are no new rows
    with stopped.again() as daemon, fl.connect(daemon.flight) as client:
        put(client, TABLE, events(ROWS, 10))
        persist(client, TABLE)
        assert daemon.terminate() == 0
    assert run("a") == list(range(ROWS + 10))
    with pytest.raises(StreamingQueryException, match="partitioned anew"):
        run("b", max_files_per_trigger=3, starting_version=1)


def test_a_job_that_is_faster_has_it_planned_anew(
    spark: SparkSession, stopped: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(stopped)
    run_job = compaction_run.run_job
    rounds = iter(range(2))

    def overtaken(*asked: Any) -> Any:
        done = run_job(*asked)
        if next(rounds) == 0:
            compact(spark, url, *TABLE)
        return done

    monkeypatch.setattr(repartitioning, "run_job", overtaken)
    report = rewrite(spark, url, *TABLE, partition_by=BY)
    assert (report.conflicts, report.files_before, report.rows) == (1, 6, ROWS)
    assert numbers_of(spark, url) == list(range(ROWS))


def test_rows_that_spark_writes_meanwhile_are_refused_and_not_lost_in_old_folders(
    spark: SparkSession, stopped: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingester.spark.append_writer import TableWriter
    from ingester.spark.options import SourceOptions
    from persist.table import TableDefinition

    url = url_of(stopped)
    said = SourceOptions.write({"path": f"{url}/{TABLE[0]}/{TABLE[1]}"})
    definition = TableDefinition.of_state(said.manifest().load())
    frame = read_table(spark, url, *TABLE).drop("time_day")
    writer = TableWriter(said, frame.schema, definition, said.manifest().root)
    message = writer.write(iter([events(ROWS, 10)]))
    rewrite(spark, url, *TABLE, partition_by=BY)
    with pytest.raises(WriteRefused, match=r"nothing was committed: .* partitioned anew"):
        writer.commit([message])
    assert numbers_of(spark, url) == list(range(ROWS))


def test_what_cannot_be_partitioned_anew_is_refused(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, stopped: Daemon
) -> None:
    keyed = (table[0], f"{table[1]}_keyed")
    create(client, keyed, events(0, 1).schema, primary_key=["i"])
    with pytest.raises(WriteRefused, match="primary key"):
        rewrite(spark, url, *keyed, partition_by=["bucket(4, i)"])
    there = url_of(stopped)
    for by, why in (
        (["day(nothing)"], "no column 'nothing'"),
        (["day(host)"], "has no day partitions"),
    ):
        with pytest.raises(WriteRefused, match=why):
            rewrite(spark, there, *TABLE, partition_by=by)
    with pytest.raises(InvalidPartitionSpec, match="'time' is not one of"):
        rewrite(spark, there, *TABLE, partition_by=["time"])
    with pytest.raises(ValueError, match="without sort_by and filter"):
        rewrite(spark, there, *TABLE, partition_by=BY, sort_by=["v"])
    assert Manifest(open_store(there), *TABLE).load().current_spec.spec_id == 1  # type: ignore[union-attr]
