"""write and writeStream to a keyed table: through its daemon, atomically, exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from ingester.spark.versions import LIMITS_BATCHES
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, events, persist, put, query
from tests.spark.test_append_writer import Stream, save

pytestmark = pytest.mark.spark


def rows(client: fl.FlightClient, table: Table) -> dict[int, tuple[object, ...]]:
    return {row["k"]: tuple(row.values())[1:] for row in query(client, table).to_pylist()}


@pytest.fixture
def stock(client: fl.FlightClient, table: Table) -> Table:
    """A keyed table with three rows."""
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "s": pa.string()})
    create(client, table, schema, primary_key=["k"])
    batch = pa.record_batch({"k": [1, 2, 3], "v": [10, 20, 30], "s": ["a", "b", "c"]})
    put(client, table, batch)
    return table


def test_rows_replace_what_has_their_keys_and_missing_columns_are_null(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, stock: Table
) -> None:
    frame = spark.createDataFrame([(2, 21), (4, 41)], "k bigint, v bigint").repartition(2)
    save(frame, url, stock, endpoint=daemon.flight)
    assert rows(client, stock) == {1: (10, "a"), 2: (21, None), 3: (30, "c"), 4: (41, None)}
    # No staged files are left.
    folder = Path(url.removeprefix("file://")) / stock[0] / stock[1]
    assert not list(folder.rglob("_staging/*"))


def test_marks_delete_keys_and_persist_has_all_in_files(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, stock: Table
) -> None:
    changes = [(1, None, "delete"), (2, 22, "upsert"), (5, 50, "upsert"), (9, None, "delete")]
    frame = spark.createDataFrame(changes, "k bigint, v bigint, _op string").coalesce(1)
    save(frame, url, stock, endpoint=daemon.flight, persist=True)
    assert rows(client, stock) == {2: (22, None), 3: (30, "c"), 5: (50, None)}
    files = read_table(spark, url, *stock)
    assert sorted(tuple(row)[:2] for row in files.collect()) == [(2, 22), (3, 30), (5, 50)]


def test_a_deletion_has_only_its_key_though_a_column_is_required(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    required = pa.field("v", pa.int64(), nullable=False)
    create(client, table, pa.schema([("k", pa.int64()), required]), primary_key=["k"])
    put(client, table, pa.record_batch({"k": [1, 2], "v": [10, 20]}))
    frame = spark.createDataFrame(
        [(1, None, "delete"), (3, 30, "upsert")], "k bigint, v bigint, _op string"
    )
    save(frame, url, table, endpoint=daemon.flight)
    assert rows(client, table) == {2: (20,), 3: (30,)}
    save(frame.where("k = 1").drop("v"), url, table, endpoint=daemon.flight)
    frame = spark.createDataFrame([(4, None, "upsert")], "k bigint, v bigint, _op string")
    with pytest.raises(Exception, match="column 'v': 1 nulls in a column that the table declares"):
        save(frame, url, table, endpoint=daemon.flight)
    assert rows(client, table) == {2: (20,), 3: (30,)}


def test_a_version_of_the_writers_own_goes_in_once(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, stock: Table
) -> None:
    def nightly(version: int, value: int) -> None:
        frame = spark.createDataFrame([(1, value)], "k bigint, v bigint")
        save(frame, url, stock, endpoint=daemon.flight, txn_app_id=stock[1], txn_version=version)

    nightly(0, 100)
    put(client, stock, pa.record_batch({"k": [1], "v": [101], "s": ["later"]}))
    nightly(0, 100)
    assert rows(client, stock)[1] == (101, "later")
    nightly(1, 102)
    assert rows(client, stock)[1] == (102, None)
    # The same writer and version is a separate write in another table.
    beside = (stock[0], f"{stock[1]}_beside")
    create(client, beside, pa.schema({"k": pa.int64(), "v": pa.int64()}), primary_key=["k"])
    frame = spark.createDataFrame([(7, 70)], "k bigint, v bigint")
    save(frame, url, beside, endpoint=daemon.flight, txn_app_id=stock[1], txn_version=1)
    assert rows(client, beside) == {7: (70,)}


def test_a_stream_goes_in_once_over_restarts_and_repeated_batches(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    table: Table,
    tmp_path: Path,
) -> None:
    target = (table[0], f"{table[1]}_target")
    put(client, table, events(0, 40, days=4))
    persist(client, table)
    create(client, target, events(0, 1).schema, primary_key=["i"])
    stream = Stream(spark, url, table, tmp_path / "checkpoint", endpoint=daemon.flight)
    assert stream.run(target) == ([20, 20] if LIMITS_BATCHES else [40])
    changed = pa.record_batch(
        {"time": events(0, 1)["time"], "host": ["changed"], "v": [0.0], "i": [39]}
    )
    put(client, target, changed)
    stream.forget_last_commit()
    # The last batch runs again and does not undo later writes.
    assert stream.run(target) == ([20] if LIMITS_BATCHES else [40])
    found = {row["i"]: row["host"] for row in query(client, target).to_pylist()}
    assert sorted(found) == list(range(40))
    assert found[39] == "changed"


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("1L AS v", "no column 'k', which is in the primary key"),
        ("1L AS k, 'x' AS v", "column 'v' is int64 in the table, but string"),
        ("cast(null AS bigint) AS k", "column 'k' of the primary key is null"),
        ("1L AS k, 'move' AS _op", "column '_op' is 'move'; it must be upsert or delete"),
    ],
)
def test_what_a_table_does_not_take_is_refused_whole(
    spark: SparkSession,
    daemon: Daemon,
    client: fl.FlightClient,
    url: str,
    stock: Table,
    select: str,
    told: str,
) -> None:
    before = rows(client, stock)
    with pytest.raises(Exception, match=told):
        save(spark.sql(f"SELECT {select}"), url, stock, endpoint=daemon.flight)
    assert rows(client, stock) == before


def test_without_its_daemon_a_keyed_table_is_not_written(
    spark: SparkSession, client: fl.FlightClient, url: str, stock: Table
) -> None:
    with pytest.raises(Exception, match="has a primary key: set the option endpoint"):
        save(spark.sql("SELECT 1L AS k"), url, stock)


def test_a_version_with_other_rows_or_below_the_newest_is_refused(
    spark: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, stock: Table
) -> None:
    def nightly(
        version: int, *values: tuple[int, int], app: str = "", persists: bool = False
    ) -> None:
        frame = spark.createDataFrame(values, "k bigint, v bigint").repartition(2)
        options = {"txn_app_id": f"{stock[1]}{app}", "txn_version": version, "persist": persists}
        save(frame, url, stock, endpoint=daemon.flight, **options)

    nightly(3, (1, 100), (2, 200))
    for persists in (False, True):  # known from memory, and from the manifest
        for other in ([(1, 100), (2, 201)], [(1, 100)], [(1, 200), (2, 100)]):
            with pytest.raises(Exception, match=r"txn_version 3 is committed with other rows"):
                nightly(3, *other, persists=persists)
        nightly(3, (2, 200), (1, 100), persists=True)
    with pytest.raises(Exception, match=r"txn_version 2 is below 3.* another txn_app_id"):
        nightly(2, (1, 50))
    assert rows(client, stock) == {1: (100, None), 2: (200, None), 3: (30, "c")}
    nightly(2, (1, 50), app="-backfill")
    nightly(4, (2, 201))
    assert rows(client, stock) == {1: (50, None), 2: (201, None), 3: (30, "c")}
