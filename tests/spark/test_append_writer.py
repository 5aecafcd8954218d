"""write and writeStream to format("ingester"): every row once, while a daemon is running."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark import read_table, register
from ingester.spark.sink.data_files import FileSink
from ingester.spark.versions import LIMITS_BATCHES
from persist.manifest import Manifest, verify
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.column_numbers import check_numbers
from tests.drivers.waiting import until
from tests.drivers.wire import Table, create, events, persist, put, query
from tests.spark.loading import load
from tests.spark.test_types import KINDS

pytestmark = pytest.mark.spark


def save(frame: DataFrame, url: str, table: Table, **options: object) -> None:
    register(frame.sparkSession)
    named = {name: str(value) for name, value in options.items()}
    writer = frame.write.format("ingester").mode("append").options(**named)
    writer.save(f"{url}/{table[0]}/{table[1]}")


def numbers(spark: SparkSession, first: int, count: int, tasks: int = 2) -> DataFrame:
    """Return rows with the columns of ``events``."""
    rows = spark.range(first, first + count, 1, tasks)
    day = F.expr("timestamp'2026-11-21 00:00:00Z' + make_interval(0, 0, 0, cast(id % 3 as int))")
    return rows.select(
        day.alias("time"),
        F.concat(F.lit("h"), F.col("id") % 7).alias("host"),
        (F.col("id") / 2).alias("v"),
        F.col("id").alias("i"),
    )


def shows(client: fl.FlightClient, table: Table, expected: list[int]) -> None:
    """Wait for the rows; the daemon looks for versions of other writers once a second."""

    def found() -> bool:
        rows = sorted(query(client, table, columns=["i"])["i"].to_pylist())
        assert len(rows) <= len(expected)
        return rows == expected

    until(found, "the daemon shows what Spark has written")


def test_rows_go_in_once_while_the_daemon_writes_the_same_table(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, partition_by=["day(time)"])
    ended = threading.Event()
    batches = 0

    def write() -> None:
        nonlocal batches
        while batches < 2 or not (ended.is_set() or batches == 30):
            put(client, table, events(10_000 + 10 * batches, 10, days=3))
            persist(client, table)
            batches += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for part in range(3):
            save(numbers(spark, 1000 * part, 1000), url, table)
    finally:
        ended.set()
        writing.join()
    expected = [*range(3000), *range(10_000, 10_000 + 10 * batches)]
    shows(client, table, expected)
    assert sorted(r.i for r in read_table(spark, url, *table).collect()) == expected
    assert sorted(r.i for r in load(spark, url, table).collect()) == expected
    assert verify(Manifest(open_store(url), *table)).findings == ()


def test_every_type_goes_back_into_its_table(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    arrays = [pa.array([*values, None], kind) for kind, values, _ in KINDS.values()]
    batch = pa.record_batch([pa.array([0, 1, 2]), *arrays], names=["i", *KINDS])
    create(client, table, batch.schema)
    put(client, table, batch)
    persist(client, table)
    save(read_table(spark, url, *table), url, table)
    until(lambda: query(client, table).num_rows == 6, "the daemon shows both")
    numbered, plain = check_numbers(Manifest(open_store(url), *table))
    assert numbered > 1
    assert plain == 0
    got = query(client, table).sort_by("i")
    for name, (kind, values, _) in KINDS.items():
        assert got[name].type == kind, name
        expected = [value for value in (*values, None) for _ in range(2)]
        assert got[name].to_pylist() == expected, name


def test_narrower_columns_fit_and_missing_ones_are_null(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema(
        {"n": pa.int64(), "u": pa.uint8(), "d": pa.decimal128(20, 3), "x": pa.string()}
    )
    create(client, table, schema)
    save(spark.sql("SELECT 1S AS n, 255 AS u, 1.5BD AS d"), url, table)
    (row,) = read_table(spark, url, *table).collect()
    assert row.asDict() == {"n": 1, "u": 255, "d": Decimal("1.500"), "x": None}


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("1L AS n, 1 AS other", "no column 'other'; it has n, u, t"),
        ("'1' AS n", "column 'n' is int64 in the table, but string"),
        ("1.5D AS n", "column 'n' is int64 in the table, but double"),
        ("1L AS n, 256 AS u", "column 'u': 256 is not a value of uint8"),
        ("1L AS n, current_timestamp() AS t", "column 't' is timestamp"),
    ],
)
def test_what_a_table_does_not_take_is_refused_whole(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, select: str, told: str
) -> None:
    create(client, table, pa.schema({"n": pa.int64(), "u": pa.uint8(), "t": pa.timestamp("us")}))
    before = Manifest(open_store(url), *table).head()
    rows = spark.range(1).selectExpr("1L AS n").union(spark.range(1).selectExpr("2L AS n"))
    frame = rows.crossJoin(spark.sql(f"SELECT {select}").drop("n")) if "n," in select else None
    with pytest.raises(Exception, match=told):
        save(frame or spark.sql(f"SELECT {select}"), url, table)
    assert Manifest(open_store(url), *table).head() == before


def test_other_refusals_say_what_to_do(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, primary_key=["i"])
    frame = numbers(spark, 0, 1)
    with pytest.raises(Exception, match="primary key: set the option endpoint"):
        save(frame, url, table)
    with pytest.raises(Exception, match="does not exist"):
        save(frame, url, ("spark", "absent"))
    with pytest.raises(Exception, match=r"mode\(\"append\"\)"):
        frame.write.format("ingester").mode("overwrite").save(f"{url}/{table[0]}/{table[1]}")
    plain = (table[0], f"{table[1]}_plain")
    create(client, plain, events(0, 1).schema)
    with pytest.raises(Exception, match="must be given together"):
        save(frame, url, plain, txn_app_id="nightly")


def test_a_version_of_the_writers_own_goes_in_once(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema)
    for version, first in ((1, 0), (1, 0), (2, 100), (1, 0)):
        save(numbers(spark, first, 100), url, table, txn_app_id="nightly", txn_version=version)
    shows(client, table, list(range(200)))
    save(numbers(spark, 200, 10), url, table, txn_app_id="other", txn_version=1)
    shows(client, table, list(range(210)))
    kept = Manifest(open_store(url), *table).load().txns
    assert dict(kept) == {"nightly": 2, "other": 1}


class Stream:
    """A stream from one table into another; its last commit can be undone, as by a crash."""

    def __init__(
        self, spark: SparkSession, url: str, source: Table, folder: Path, **options: str
    ) -> None:
        register(spark)
        self._spark, self._url, self._source, self._folder = spark, url, source, folder
        self._options = options

    def run(self, target: Table) -> list[int]:
        """Run until all rows are read; return the number of rows in each batch."""
        source = f"{self._url}/{self._source[0]}/{self._source[1]}"
        limit = {"max_files_per_trigger": "2"} if LIMITS_BATCHES else {}
        reader = self._spark.readStream.format("ingester").options(columns="time,host,v,i", **limit)
        writer = reader.load(source).writeStream.format("ingester").trigger(availableNow=True)
        running = writer.options(
            path=f"{self._url}/{target[0]}/{target[1]}",
            checkpointLocation=str(self._folder),
            **self._options,
        ).start()
        running.awaitTermination()
        return [json.loads(_json(one))["numInputRows"] for one in running.recentProgress]

    def forget_last_commit(self) -> None:
        """Simulate a driver's death between the sink's commit and the checkpoint's."""
        last = max((self._folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def _json(progress: Any) -> str:
    return str(progress.json)


def test_a_stream_goes_in_once_over_restarts_and_repeated_batches(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    target = (table[0], f"{table[1]}_target")
    put(client, table, events(0, 50, days=5))
    persist(client, table)
    create(client, target, events(0, 1).schema)
    stream = Stream(spark, url, table, tmp_path / "checkpoint")
    assert stream.run(target) == ([20, 20, 10] if LIMITS_BATCHES else [50])
    manifest = Manifest(open_store(url), *target)
    head = manifest.head()
    stream.forget_last_commit()
    put(client, table, events(50, 20, days=2))
    persist(client, table)
    # The last batch runs again and is not written again; new rows follow.
    if LIMITS_BATCHES:
        assert stream.run(target) == [10, 20]
    else:  # one batch, then the new rows
        assert (stream.run(target), stream.run(target)) == ([50], [20])
    assert manifest.head() == head + 1
    shows(client, target, list(range(70)))
    assert sum(stream.run(target)) == 0
    assert verify(manifest).findings == ()


def test_what_a_task_holds_is_bounded_however_many_partitions(
    client: fl.FlightClient, url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ingester.spark.sink.data_files as module

    create(client, table, events(0, 1).schema, partition_by=["day(time)"])
    manifest = Manifest(open_store(url), *table)
    definition = TableDefinition.of_state(manifest.load())
    monkeypatch.setattr(module, "HELD_BYTES", 4000)
    sink = FileSink(manifest.store, manifest.root, definition, "push", "spark")
    seen = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for first in range(0, 2000, 100):
            seen = max(seen, sink.held_bytes)
            yield events(first, 100, days=20)

    adds = sink.write(batches())
    assert sum(add.rows for add in adds) == 2000
    assert seen <= 4000
    assert sink.held_bytes == 0
    assert {add.values[0] for add in adds} == {
        (dt.date(2026, 11, 21) + dt.timedelta(days=n)).isoformat() for n in range(20)
    }


def test_a_small_partition_does_not_hold_the_rows_of_a_large_one(
    client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema({"k": pa.string(), "x": pa.int64()})
    create(client, table, schema, partition_by=["identity(k)"])
    manifest = Manifest(open_store(url), *table)
    definition = TableDefinition.of_state(manifest.load())
    sink = FileSink(manifest.store, manifest.root, definition, "push", "spark")
    keys = ["cold", *["hot"] * 99_999]
    # A private attribute, because nothing else shows whether one row keeps its whole batch in
    # memory.
    sink._take(pa.record_batch([pa.array(keys), pa.array(range(100_000))], schema=schema))
    (cold,) = sink._held.take(("cold",)).batches
    assert cold.get_total_buffer_size() < 1000
