"""A column added during a stream stops it before the first row with a value in that column.

The restart loses and doubles no row. Existing DataFrames do not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from ingester.spark import StreamUnsuitable, read_table, register
from ingester.spark.options import SourceOptions
from ingester.spark.source.batch import SourceRows
from ingester.spark.source.stream import NewColumns, TableStream
from ingester.spark.versions import ReadAllAvailable, ReadMaxFiles
from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.wire import Table, events, persist, put
from tests.spark.loading import load

pytestmark = pytest.mark.spark

TOLD = r"column 'late' was added to table .*Load it again .*same checkpoint"


def rows(first: int, count: int, **columns: object) -> pa.RecordBatch:
    """Return rows of ``events`` with additional columns, each with one value."""
    batch = events(first, count)
    for name, value in columns.items():
        batch = batch.append_column(name, pa.array([value] * count))
    return batch


def write(client: fl.FlightClient, table: Table, *batches: pa.RecordBatch) -> None:
    """Write each batch to a file and a version of its own."""
    for batch in batches:
        put(client, table, batch)
        persist(client, table)


class Running:
    """A stream of one table into Parquet files; its checkpoint survives restarts."""

    def __init__(self, spark: SparkSession, url: str, table: Table, folder: Path) -> None:
        register(spark)
        self._spark, self._path = spark, f"{url}/{table[0]}/{table[1]}"
        self._out, self._checkpoint = str(folder / "out"), str(folder / "checkpoint")

    def load(self, **options: str) -> DataFrame:
        return self._spark.readStream.format("ingester").options(**options).load(self._path)

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", self._out)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self, frame: DataFrame) -> None:
        """Run until all available rows are read."""
        self.start(frame, availableNow=True).awaitTermination()

    def run_twice(self, frame: DataFrame) -> None:
        self.run(frame)
        self.run(frame)

    def arrived(self, column: str) -> list[tuple[int, object]]:
        """Return ``i`` and the column's value for each written row."""
        found = self._spark.read.option("mergeSchema", "true").parquet(self._out)
        return sorted((row.i, row.asDict().get(column)) for row in found.collect())


def test_a_stream_stops_before_a_new_column_and_continues_after_it_is_loaded_again(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    write(client, table, rows(0, 10))
    stream = Running(spark, url, table, tmp_path)
    old = stream.load()
    query = stream.start(old, processingTime="0 seconds")
    try:
        query.processAllAvailable()
        write(client, table, rows(10, 10), rows(20, 10, late="x"), rows(30, 5))
        write(client, table, rows(35, 5, late="y"))
        with pytest.raises(Exception, match=TOLD):
            query.awaitTermination(240)
        assert not query.isActive
    finally:
        query.stop()
    assert all(i < 20 for i, _ in stream.arrived("late"))
    # The old frame lacks the column in all runs. (Before Spark 4.2 such a run may first write the
    # rows that precede the column.)
    with pytest.raises(Exception, match=TOLD):
        stream.run_twice(old)
    assert all(i < 20 for i, _ in stream.arrived("late"))
    stream.run(stream.load())
    late = {i: "x" if 20 <= i < 30 else "y" if i >= 35 else None for i in range(40)}
    assert stream.arrived("late") == list(late.items())


def test_a_stream_that_was_told_its_columns_goes_on_without_new_ones(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    write(client, table, rows(0, 5))
    stream = Running(spark, url, table, tmp_path)
    told = stream.load(columns="i,v")
    schema = spark.readStream.format("ingester").schema("i bigint, v double")
    said = schema.load(f"{url}/{table[0]}/{table[1]}")
    for first, frame in ((5, told), (10, said)):
        stream.run(frame)
        write(client, table, rows(first, 5, **{f"late{first}": "x"}))
        stream.run(frame)
    assert stream.arrived("v") == [(i, i / 2) for i in range(15)]


def test_a_frame_that_was_made_before_a_column_came_has_the_rows_of_then(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    write(client, table, rows(0, 5))
    frames = load(spark, url, table), read_table(spark, url, *table)
    write(client, table, rows(5, 5, late="x"))
    for frame in frames:
        assert "late" not in frame.columns
        assert sorted(row.i for row in frame.collect()) == list(range(5))
    for frame in load(spark, url, table), read_table(spark, url, *table):
        assert sorted((row.i, row.late) for row in frame.collect()) == [
            *((i, None) for i in range(5)),
            *((i, "x") for i in range(5, 10)),
        ]


def stream(url: str, table: Table, version: int) -> TableStream:
    """Return the stream that Spark's driver has for a frame loaded at this version."""
    said = SourceOptions.stream({"path": f"{url}/{table[0]}/{table[1]}"})
    manifest, state = said.state(version)
    seen = SourceRows.all(state, None)
    new_columns = NewColumns(manifest, manifest.load(), seen.schema().fieldNames())
    return TableStream(manifest, seen, said, 4, new_columns)


def test_what_comes_before_a_column_is_a_batch_and_no_plan_goes_past_it(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    write(client, table, rows(0, 5))
    manifest = Manifest(open_store(url), *table)
    loaded = manifest.head()
    reader = stream(url, table, loaded)
    begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    write(client, table, rows(5, 5), rows(10, 5), rows(15, 5, late="x", more=1))
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert sum(count(reader, part) for part in reader.partitions(begin, end)) == 10
    told = "columns 'late', 'more' were added"
    with pytest.raises(StreamUnsuitable, match=told):
        reader.latestOffset(end, ReadMaxFiles(1))
    # Another process has planned the batch: all of it is refused.
    past = {"version": manifest.head(), "files": 0}
    with pytest.raises(StreamUnsuitable, match=told):
        reader.partitions(begin, past)
    anew = stream(url, table, manifest.head())
    assert sum(count(anew, part) for part in anew.partitions(begin, past)) == 15
    # A new stream of the old frame would begin with rows that have the column.
    with pytest.raises(StreamUnsuitable, match=told):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_without_a_start_a_batch_begins_where_the_last_plan_ended(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    """Spark 4.0 and 4.1 ask for offsets this way."""
    write(client, table, rows(0, 5))
    manifest = Manifest(open_store(url), *table)
    reader = stream(url, table, manifest.head())
    first = reader.latestOffset()
    newest = {"version": manifest.head(), "files": 0}
    assert first == {**newest, "uid": manifest.load().uid}
    write(client, table, rows(5, 5), rows(10, 5, late="x"))
    before = reader.latestOffset()
    assert sum(count(reader, part) for part in reader.partitions(first, before)) == 5
    with pytest.raises(StreamUnsuitable, match="column 'late' was added"):
        reader.latestOffset()
    # Spark plans the last batch of a checkpoint before it asks for the next one.
    again = stream(url, table, manifest.head())
    again.partitions(first, before)
    newest = {"version": manifest.head(), "files": 0}
    assert again.latestOffset() == {**newest, "uid": manifest.load().uid}


def test_a_checkpoint_of_another_table_is_told(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    write(client, table, rows(0, 5))
    reader = stream(url, table, Manifest(open_store(url), *table).head())
    with pytest.raises(StreamUnsuitable, match=r"version 41.*checkpoint is of another table"):
        reader.latestOffset({"version": 41, "files": 0}, ReadAllAvailable())


def count(reader: TableStream, partition: InputPartition) -> int:
    return sum(batch.num_rows for batch in reader.read(partition))
