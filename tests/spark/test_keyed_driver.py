"""The driver's part of a write to a keyed table: losing tasks, rival drivers, killed daemons."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructType

import ingester.spark.sink.upsert as module
from ingester.client import Client, RetryPolicy, Unreachable
from ingester.client.connection import Connection
from ingester.client.sync_stream import SyncAnswer, SyncColumn, SyncStream
from ingester.client.wire import Persisted
from ingester.spark.options import SourceOptions
from ingester.spark.sink.upsert import UpsertSink, staged_rows
from ingester.spark.sink.writers import BatchWriter, TaskResult
from persist.manifest import Manifest, Retention, clean_up
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.wire import Json, Table, create, describe, put, query
from tests.spark.test_keyed_writer import rows

pytestmark = pytest.mark.spark


def test_a_write_of_many_messages_becomes_visible_at_once(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(client, table, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"])
    monkeypatch.setattr(module, "MESSAGE_BYTES", 1000)
    schema = StructType().add("k", LongType()).add("v", LongType())
    writer = keyed_writer(schema, url, table, daemon.flight)
    manifest = Manifest(open_store(url), *table)

    def batches(first: int) -> Iterator[pa.RecordBatch]:
        for start in range(first, first + 500, 100):
            keys = range(start, start + 100)
            yield pa.record_batch({"k": pa.array(keys), "v": pa.array(keys)})

    kept, lost = writer.write(batches(0)), writer.write(batches(10_000))
    assert query(client, table).num_rows == 0
    writer.commit([kept, None])
    assert sorted(rows(client, table)) == list(range(500))
    # Garbage collection deletes the staged files of a losing task.
    assert isinstance(lost, TaskResult)
    assert all(manifest.store.exists(one.path) for one in lost.parts)
    clean_up(manifest, Retention(retain_s=0, orphan_grace_s=0, keep_versions=10))
    assert not any(manifest.store.exists(one.path) for one in lost.parts)


def test_a_daemon_that_stays_away_is_told_with_its_option(
    client: fl.FlightClient, url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, table, pa.schema({"k": pa.int64()}), primary_key=["k"])
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    writer = keyed_writer(StructType().add("k", LongType()), url, table, "grpc://127.0.0.1:1")
    staged = writer.write(iter([pa.record_batch({"k": [1]})]))
    with pytest.raises(Unreachable, match=r"option endpoint: cannot connect to 127\.0\.0\.1:1"):
        writer.commit([staged])
    assert query(client, table).num_rows == 0


def test_a_daemon_that_dies_in_the_midst_of_a_write_has_it_once_when_it_is_back(
    spark: SparkSession, tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[Daemon] = []

    def dying(*asked: Any) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(staged_rows(*asked)):
            if number == 3 and len(lives) == 1:
                lives[0].kill()
                lives.append(lives[0].again())
            yield batch

    monkeypatch.setattr(module, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(module, "staged_rows", dying)
    with Daemon.start(tmp_path / "data", arguments=steady_flight()) as daemon:
        lives.append(daemon)
        with fl.connect(daemon.flight) as client:
            create(client, table, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"])
        url = f"file://{daemon.data_dir / 'store'}"
        written = spark.range(2_000).selectExpr("id AS k", "id * 2 AS v")
        writer_in_this_process(written, url, table, daemon.flight)
        with lives[1] as back, fl.connect(back.flight) as client:
            assert rows(client, table) == {k: (2 * k,) for k in range(2_000)}
    assert len(lives) == 2


def test_a_disk_that_is_lost_before_rows_are_in_files_has_them_sent_again_where_that_is_asked(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[Daemon] = []
    persist = Client.persist

    def lost_before(client: Client, *asked: Any) -> list[Persisted]:
        if len(lives) == 1:
            lives[0].kill()
            shutil.rmtree(lives[0].data_dir)
            lives.append(lives[0].again(recovery__accept_lost_log="true"))
        return persist(client, *asked)

    monkeypatch.setattr(Client, "persist", lost_before)
    url = f"file://{tmp_path}/store"
    with Daemon.start(tmp_path / "data", arguments=steady_flight(), store=url) as daemon:
        lives.append(daemon)
        with fl.connect(daemon.flight) as client:
            create(client, table, pa.schema({"k": pa.int64()}), primary_key=["k"])
        schema = StructType().add("k", LongType())
        writer = keyed_writer(schema, url, table, daemon.flight, persist="true")
        writer.commit([writer.write(iter([pa.record_batch({"k": [1, 2]})]))])
        with lives[1] as back, fl.connect(back.flight) as client:
            assert sorted(rows(client, table)) == [1, 2]
            assert describe(client, table)["persisted"]["rows"] == 2


def test_persist_waits_for_an_unreachable_daemon(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    standing = SyncStream.standing

    def away_once(stream: SyncStream) -> SyncAnswer:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Unreachable("gone")
        return standing(stream)

    url = f"file://{tmp_path}/store"
    with Daemon.start(tmp_path / "data", store=url) as daemon, fl.connect(daemon.flight) as client:
        create(client, table, pa.schema({"k": pa.int64()}), primary_key=["k"])
        schema = StructType().add("k", LongType())
        writer = keyed_writer(schema, url, table, daemon.flight, persist="true")
        files: list[WriterCommitMessage | None] = [
            writer.write(iter([pa.record_batch({"k": [1, 2]})]))
        ]
        monkeypatch.setattr(SyncStream, "standing", away_once)
        writer.commit(files)
        assert asked > 2
        assert describe(client, table)["persisted"]["rows"] == 2


def test_two_drivers_of_one_write_at_once_write_it_once_and_say_what(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first driver was taken for dead and is still running."""
    monkeypatch.setattr(module, "MESSAGE_BYTES", 1000)
    create(client, table, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"])
    written = spark.range(2_000).selectExpr("id AS k", "id * 2 AS v").cache()
    written.count()
    with ThreadPoolExecutor(2) as pool:
        for version in range(3):
            txn: dict[str, object] = {"txn_app_id": table[1], "txn_version": version}
            drivers = [
                pool.submit(writer_in_this_process, written, url, table, daemon.flight, **txn)
                for _ in range(2)
            ]
            for driver in drivers:
                driver.result()
            put(client, table, pa.record_batch({"k": [0], "v": [version]}))
    wanted: dict[int, tuple[object, ...]] = {k: (2 * k,) for k in range(2_000)}
    assert rows(client, table) == wanted | {0: (2,)}
    # Both drivers write to one stream, so two messages may share a line.
    told = list(map(json.loads, re.findall(r"\{[^{}]*\}", capsys.readouterr().err)))
    assert [one["sequence"] for one in told] == [1, 1, 2, 2, 3, 3]
    for pair in (told[:2], told[2:4], told[4:]):
        assert sorted((one["again"], one["rows"]) for one in pair) == [(False, 2_000), (True, 0)]
    assert all(one["files"] == 1 and one["bytes"] > 2_000 for one in told)


def test_a_daemon_that_has_no_room_is_asked_again_and_takes_the_rows_once(
    spark: SparkSession, tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients hold the largest number of open transactions."""
    refused: list[Json] = []
    exchange = Connection.exchange

    def watched(connection: Connection, command: bytes, batch: pa.RecordBatch) -> bytes:
        answer = exchange(connection, command, batch)
        said = json.loads(answer)
        if not said["accepted"] and not json.loads(command)["origin"].startswith("other-"):
            if not refused:
                close_the_others()
            refused.append(said)
        return answer

    others: list[SyncStream] = []
    columns = [SyncColumn("old_pk", "k"), SyncColumn("new_pk", "k"), SyncColumn("value", "v")]

    def close_the_others() -> None:
        for stream in others:
            last = pa.record_batch({"0": pa.array([None], pa.int64()), "1": [-1], "2": [-1]})
            assert stream.send(table[1], columns, last, sequence=1).accepted

    with (
        Daemon.start(tmp_path / "data", replication__max_transaction_bytes="64KiB") as daemon,
        fl.connect(daemon.flight) as flight,
        Client(daemon.flight, retry=RetryPolicy(for_s=0)) as client,
    ):
        create(flight, table, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"])
        filling = pa.record_batch(
            {"0": pa.nulls(2_000, pa.int64()), "1": [-2] * 2_000, "2": pa.array(range(2_000))}
        )
        for number in range(100):
            stream = client.sync(table[0], f"other-{number}")
            if not stream.send(table[1], columns, filling, begin=True).accepted:
                break
            others.append(stream)
        assert 1 < len(others) < 100
        monkeypatch.setattr(Connection, "exchange", watched)
        written = spark.range(2_000).selectExpr("id AS k", "id * 2 AS v")
        url = f"file://{daemon.data_dir / 'store'}"
        writer_in_this_process(written, url, table, daemon.flight)
        assert refused
        wanted = {k: (2 * k,) for k in range(2_000)} | {-1: (-1,), -2: (1_999,)}
        assert rows(flight, table) == wanted


def test_a_write_in_object_storage_survives_the_daemons_machine(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url, table = f"file://{tmp_path}/store", ("ns", "t")
    daemon = Daemon.start(tmp_path / "d", arguments=steady_flight(), store=url)
    with daemon, Client(daemon.flight) as client:
        client.create_table(
            *table, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"]
        )
        frame = spark.range(10).selectExpr("id AS k", "id * 2 AS v")
        writer_in_this_process(frame, url, table, daemon.flight, ack="Store")
        (told,) = [
            json.loads(line) for line in capfd.readouterr().err.splitlines() if "event" in line
        ]
        assert (told["event"], told["ack"], told["rows"]) == ("committed", "store", 10)
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        with daemon.again():
            found = client.query(*table).to_pylist()
            assert sorted(row["v"] for row in found) == [2 * k for k in range(10)]


def writer_in_this_process(
    frame: DataFrame, url: str, table: Table, endpoint: str, **more: object
) -> None:
    """Do what Spark does for a batch write, with a driver's part that a test can observe."""
    writer = keyed_writer(frame.schema, url, table, endpoint, **more)
    writer.commit([writer.write(iter(frame.toArrow().to_batches(max_chunksize=100)))])


def keyed_writer(
    schema: StructType, url: str, table: Table, endpoint: str, **more: object
) -> BatchWriter:
    given = {"path": f"{url}/{table[0]}/{table[1]}", "endpoint": endpoint}
    options = SourceOptions.write(given | {name: str(value) for name, value in more.items()})
    manifest = options.manifest()
    definition = TableDefinition.of_state(manifest.load())
    return BatchWriter(UpsertSink(options, schema, definition, manifest.root), options)
