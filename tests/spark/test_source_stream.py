"""readStream.format("ingester") returns each row once: limits, restarts, rewrites, clean-up."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ingester.spark import StreamUnsuitable, register
from ingester.spark.options import SourceOptions
from ingester.spark.source.batch import FilesPartition, SourceRows
from ingester.spark.source.stream import IDLE_VERSIONS, NewColumns, TableStream
from ingester.spark.versions import ReadAllAvailable, ReadMaxFiles
from persist.manifest import (
    Horizon,
    Manifest,
    Proposal,
    Remove,
    Retention,
    WriterIdentity,
    clean_up,
    commit,
)
from persist.store import open_store
from tests.drivers.wire import Table, events, persist, put
from tests.spark.loading import limits_batches

pytestmark = pytest.mark.spark

SPARK = WriterIdentity(ingester_id="spark", incarnation="1", epoch=1)
NO_LIMIT = ReadAllAvailable()


class Query:
    """A stream of one table into Parquet files, run until all available rows are read."""

    def __init__(self, spark: SparkSession, url: str, table: Table, folder: Path) -> None:
        register(spark)
        self._spark = spark
        self._path = f"{url}/{table[0]}/{table[1]}"
        self._out, self._checkpoint = str(folder / "out"), str(folder / "checkpoint")

    def run(self, **options: object) -> list[int]:
        """Run the stream and return the number of rows in each batch."""
        named = {name: str(value) for name, value in options.items()}
        rows = self._spark.readStream.format("ingester").options(**named).load(self._path)
        writer = rows.writeStream.format("parquet").option("path", self._out)
        query = (
            writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return [p["numInputRows"] for p in map(json.loads, map(_json, query.recentProgress))]

    def rows(self) -> list[int]:
        """Return the written rows."""
        return sorted(row.i for row in self._spark.read.parquet(self._out).collect())


def _json(progress: Any) -> str:
    return str(progress.json)


def stream(url: str, table: Table, **options: object) -> TableStream:
    """Return the stream that Spark's driver would have, without Spark."""
    named = {name: str(value) for name, value in options.items()}
    said = SourceOptions.stream({**named, "path": f"{url}/{table[0]}/{table[1]}"})
    manifest, state = said.state(said.manifest().head())
    return TableStream(
        manifest, SourceRows.all(state, None), said, 4, NewColumns(manifest, state, None)
    )


def paths(reader: TableStream, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the files between two offsets, in the tasks that read them."""
    found = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, FilesPartition)
        found.append(",".join(file.data.path for file in partition.files))
    return found


def manifest_of(url: str, table: Table) -> Manifest:
    return Manifest(open_store(url), *table)


def rewrite(manifest: Manifest) -> None:
    """Replace all files by files with other names, as a compaction does."""
    state = manifest.load()
    actions: list[Any] = []
    for path, add in state.files.items():
        data = manifest.store.get(manifest.object_path(path))
        renamed = path.replace(".parquet", "x.parquet")
        at = manifest.store.put(manifest.object_path(renamed), data).at.isoformat()
        actions.append(structs.replace(add, path=renamed, kind="rewrite", at=at))
        actions.append(Remove(path=path, reason="compaction"))
    commit(manifest, state, Proposal(actions), SPARK)


@limits_batches
def test_rows_arrive_once_through_limits_restarts_and_rewrites(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    query = Query(spark, url, table, tmp_path)
    put(client, table, events(0, 100, days=10))
    persist(client, table)
    assert query.run(max_files_per_trigger=4) == [40, 40, 20]
    for first in (100, 130):
        put(client, table, events(first, 30, days=3))
        persist(client, table)
    assert query.run(max_rows_per_trigger=25) == [20, 20, 20]
    assert query.rows() == list(range(160))
    rewrite(manifest_of(url, table))
    put(client, table, events(160, 5))
    persist(client, table)
    assert sum(query.run()) == 5
    assert sum(query.run()) == 0
    assert query.rows() == list(range(165))


def test_where_a_stream_was_told_to_begin_counts_for_nothing_when_it_is_started_again(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    """The checkpoint counts, even if the start version has been deleted."""
    put(client, table, events(0, 10))
    first = persist(client, table)
    query = Query(spark, url, table, tmp_path)
    assert sum(query.run(starting_version="latest")) == 0
    put(client, table, events(10, 10))
    persist(client, table)
    assert sum(query.run(starting_version="latest")) == 10
    put(client, table, events(20, 10))
    persist(client, table)
    clean_up(manifest_of(url, table), Retention(retain_s=0, orphan_grace_s=0, keep_versions=2))
    assert sum(query.run(starting_version=first)) == 10
    put(client, table, events(30, 10))
    persist(client, table)
    assert sum(query.run()) == 10
    assert query.rows() == list(range(10, 40))


def test_a_batch_that_runs_again_has_the_same_files(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    """Spark plans a batch again after a crash, when the table has new versions."""
    put(client, table, events(0, 12, days=12))
    persist(client, table)
    first = stream(url, table)
    begin = first.initialOffset()
    middle = first.latestOffset(begin, ReadMaxFiles(5))
    rest = first.latestOffset(middle, ReadMaxFiles(3))
    seen = [paths(first, begin, middle), paths(first, middle, rest)]
    for start in (12, 24):
        put(client, table, events(start, 12, days=2))
        persist(client, table)
    rewrite(manifest_of(url, table))
    again = stream(url, table)
    assert again.initialOffset() == begin
    assert [paths(again, begin, middle), paths(again, middle, rest)] == seen
    end = again.latestOffset(rest, NO_LIMIT)
    every = [file for part in (*seen, paths(again, rest, end)) for file in _files(part)]
    assert len(every) == len(set(every)) == 16
    assert again.latestOffset(end, NO_LIMIT) == end
    assert paths(again, end, end) == []


def _files(tasks: list[str]) -> list[str]:
    return [file for task in tasks for file in task.split(",")]


def test_any_steps_give_each_file_once(client: fl.FlightClient, url: str, table: Table) -> None:
    put(client, table, events(0, 6, days=6))
    persist(client, table)
    opening = stream(url, table).latestOffset({"snapshot": 0, "files": 0}, ReadMaxFiles(1))
    for start in range(6, 26, 5):
        put(client, table, events(start, 5, days=5))
        persist(client, table)
    expected = 6 + 4 * 5
    for step in range(1, 8):
        reader = stream(url, table)
        offset, got = opening, paths(reader, reader.initialOffset(), opening)
        while (further := reader.latestOffset(offset, ReadMaxFiles(step))) != offset:
            part = _files(paths(reader, offset, further))
            assert 1 <= len(part) <= step
            got, offset = got + part, further
        assert len(got) == len(set(got)) == expected, step


def test_files_come_as_they_were_committed(client: fl.FlightClient, url: str, table: Table) -> None:
    """In any other order a watermark would drop rows of the first files as late."""
    for first in range(0, 80, 10):
        put(client, table, events(first, 10))
        persist(client, table)
    reader, offset = stream(url, table), {"snapshot": 0, "files": 0}
    seen = []
    while (further := reader.latestOffset(offset, ReadMaxFiles(1))) != offset:
        (partition,) = reader.partitions(offset, further)
        (batch,) = reader.read(partition)
        seen.append(min(batch["i"].to_pylist()))
        offset = further
    assert seen == list(range(0, 80, 10))


def test_where_a_stream_begins(client: fl.FlightClient, url: str, table: Table) -> None:
    versions = []
    for first in (0, 10, 20):
        put(client, table, events(first, 10))
        versions.append(persist(client, table))

    def files(**options: object) -> int:
        reader = stream(url, table, **options)
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, NO_LIMIT)
        return len(_files(paths(reader, begin, end)))

    assert files() == 3
    assert files(starting_version=versions[1]) == 2
    assert files(starting_version="latest") == 0
    reader = stream(url, table, starting_version="latest")
    begin = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    put(client, table, events(30, 10))
    persist(client, table)
    assert len(_files(paths(reader, begin, reader.latestOffset(begin, NO_LIMIT)))) == 1


def test_only_what_is_there_at_the_start_comes_now(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    reader = stream(url, table)
    reader.prepareForTriggerAvailableNow()
    put(client, table, events(10, 10))
    persist(client, table)
    end = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    assert len(paths(reader, reader.initialOffset(), end)) == 1
    assert reader.latestOffset(end, NO_LIMIT) == end
    assert reader.reportLatestOffset()["version"] == end["version"] + 1


def test_versions_without_new_rows_are_no_batches_but_are_left_behind_in_time(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    reader, manifest = stream(url, table), manifest_of(url, table)
    end = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    for minute in range(IDLE_VERSIONS):
        assert reader.latestOffset(end, NO_LIMIT) == end
        at = f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00+00:00"
        commit(manifest, None, Proposal([Horizon(at=at)]), SPARK)
    assert reader.latestOffset(end, NO_LIMIT)["version"] == end["version"] + IDLE_VERSIONS


def test_a_stream_that_fell_behind_what_is_kept_says_so(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    reader = stream(url, table)
    end = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    for first in range(10, 60, 10):
        put(client, table, events(first, 10))
        persist(client, table)
    retention = Retention(retain_s=0, orphan_grace_s=0, keep_versions=1)
    clean_up(manifest_of(url, table), retention)
    with pytest.raises(StreamUnsuitable, match=r"no longer retained.*manifest\.retain"):
        reader.latestOffset(end, NO_LIMIT)


@pytest.fixture
def replaced(
    client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> Callable[[int], str]:
    """A store with table n/t of one version, and how to replace it by one with the given number of
    versions."""
    namespace, name = table
    folder = tmp_path / "another-store" / "n" / "t"

    def replace(versions: int) -> str:
        other = (namespace, f"{name}-{versions}")
        for first in range(versions):
            put(client, other, events(100 * versions + first, 1))
            persist(client, other)
        shutil.rmtree(folder, ignore_errors=True)
        source = Path(url.removeprefix("file://")) / other[0] / other[1]
        shutil.copytree(source, folder)
        return f"file://{tmp_path / 'another-store'}"

    return replace


@pytest.mark.parametrize("versions", [2, 6])
def test_a_table_that_was_dropped_and_created_again_is_told_from_the_one_before(
    versions: int, replaced: Callable[[int], str], spark: SparkSession, tmp_path: Path
) -> None:
    of = ("n", "t")
    url = replaced(3)
    query = Query(spark, url, of, tmp_path / "before")
    query.run()
    assert query.rows() == [300, 301, 302]
    running = stream(url, of)
    end = running.latestOffset(running.initialOffset(), NO_LIMIT)
    # Without the uid, as in an older checkpoint, the offset means what it meant.
    plain = {name: value for name, value in end.items() if name != "uid"}
    assert running.latestOffset(plain, NO_LIMIT) == plain
    replaced(versions)
    again = "dropped and created again|checkpoint is of another table"
    with pytest.raises(StreamUnsuitable, match=again):
        running.latestOffset(end, NO_LIMIT)
    with pytest.raises(StreamUnsuitable, match=again):
        stream(url, of).partitions(running.initialOffset(), end)
    with pytest.raises(StreamingQueryException, match=again):
        query.run()
    assert query.rows() == [300, 301, 302]
    new = Query(spark, url, of, tmp_path / "after")
    new.run()
    assert new.rows() == [100 * versions + first for first in range(versions)]


def test_a_reader_goes_to_executors_without_the_state(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    reader = stream(url, table)
    end = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    (partition,) = reader.partitions(reader.initialOffset(), end)
    there = pickle.loads(pickle.dumps(reader))
    assert sum(batch.num_rows for batch in there.read(partition)) == 10
    # A private attribute, because Spark asks for the schema in a separate process.
    assert isinstance(there._rows.schema(), StructType)
