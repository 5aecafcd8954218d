"""Tables of Spark's catalogue, views, and Spark's own types, with real statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark import compact, expire, read_table, register
from tests.drivers.wire import Table, create, persist, put
from tests.spark.test_refusals import told

pytestmark = pytest.mark.spark

NO_CATALOGUE = "tables of Spark's catalogue .* use CREATE TEMP VIEW … USING ingester to read"
HALF_MADE = "no table is named: .* DROP TABLE removes it from the catalogue"


@pytest.fixture
def path(client: fl.FlightClient, url: str, table: Table) -> str:
    """A table of ids and texts with one row."""
    rows = pa.record_batch({"id": [1], "v": ["a"]})
    create(client, table, rows.schema)
    put(client, table, rows)
    persist(client, table)
    return f"{url}/{table[0]}/{table[1]}"


@pytest.fixture
def view(spark: SparkSession, path: str, table: Table) -> Iterator[str]:
    """A temporary view of the table, as the documentation makes it."""
    register(spark)
    spark.sql(_view(table, path))
    yield table[1]
    spark.catalog.dropTempView(table[1])


def _view(table: Table, path: str) -> str:
    url = path.removesuffix(f"/{table[0]}/{table[1]}")
    named = f"url '{url}', namespace '{table[0]}', table '{table[1]}'"
    return f"CREATE OR REPLACE TEMP VIEW {table[1]} USING ingester OPTIONS ({named})"


def _ids(spark: SparkSession, source: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {source}").collect())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE c USING ingester OPTIONS (path '{path}')",
        "CREATE TABLE c USING ingester LOCATION '{path}'",
    ],
)
def test_a_table_of_the_catalogue_is_refused_with_what_to_use(
    spark: SparkSession, path: str, statement: str
) -> None:
    register(spark)
    with pytest.raises(Exception, match=NO_CATALOGUE) as error:
        spark.sql(statement.format(path=path))
    told(error)
    assert not spark.catalog.tableExists("c")


def test_a_table_that_spark_made_without_asking_says_how_to_remove_it(
    spark: SparkSession, path: str, table: Table
) -> None:
    register(spark)
    frame = spark.createDataFrame([(2, "b")], "id bigint, v string")
    # Spark calls nothing of ours that differs from save(path): the rows are appended.
    frame.write.format("ingester").option("path", path).mode("append").saveAsTable("made")
    spark.sql(f"CREATE TABLE made_too (id bigint) USING ingester OPTIONS (path '{path}')")
    for statement in (
        "SELECT * FROM made",
        "INSERT INTO made VALUES (3, 'c')",
        "SELECT * FROM made_too",
    ):
        with pytest.raises(Exception, match=HALF_MADE) as error:
            spark.sql(statement).collect()
        told(error)
    for name in ("made", "made_too"):
        spark.sql(f"DROP TABLE {name}")
        assert not spark.catalog.tableExists(name)
    with pytest.raises(Exception, match=HALF_MADE) as error:
        spark.sql("CREATE TABLE made_as USING ingester AS SELECT 4L AS id, 'd' AS v")
    told(error)
    spark.sql(_view(table, path))
    assert _ids(spark, table[1]) == [1, 2]


def test_an_insert_into_a_view_is_seen_by_the_view_when_it_is_made_again(
    spark: SparkSession, path: str, table: Table, view: str
) -> None:
    spark.sql(f"INSERT INTO {view} VALUES (2, 'b')")
    spark.sql(f"INSERT INTO {view} SELECT id + 10, v FROM {view}")
    spark.sql(f"REFRESH TABLE {view}")
    assert _ids(spark, view) == [1]
    spark.sql(_view(table, path))
    assert _ids(spark, view) == [1, 2, 11]
    with pytest.raises(Exception, match="writes only add rows") as error:
        spark.sql(f"INSERT OVERWRITE {view} VALUES (3, 'c')")
    told(error)
    for statement in ("DELETE FROM {} WHERE id = 1", "UPDATE {} SET v = 'x'", "TRUNCATE TABLE {}"):
        with pytest.raises(Exception, match=r"not support|expects a table"):
            spark.sql(statement.format(view))
    spark.sql(_view(table, path))
    assert _ids(spark, view) == [1, 2, 11]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("CAST('ab' AS CHAR(5))", "ab"),
        ("CAST('ab' AS VARCHAR(5))", "ab"),
        ("INTERVAL '3' MONTH", "column 'v' has type interval month, .* cast it"),
        ("INTERVAL '3' DAY", "column 'v' is string in the table, but duration"),
        ("make_interval(1)", 'Cannot use "INTERVAL" type'),
        ("CAST(INTERVAL '3' MONTH AS STRING)", "INTERVAL '3' MONTH"),
    ],
)
def test_texts_and_intervals_of_spark_are_stored_or_refused_by_name(
    spark: SparkSession, path: str, view: str, value: str, stored: str
) -> None:
    frame = spark.sql(f"SELECT 2L AS id, {value} AS v")
    write = frame.write.format("ingester").mode("append")
    if frame.schema["v"].dataType.simpleString() == "string":
        write.save(path)
        found = spark.read.format("ingester").load(path).where("id = 2").collect()
        assert [row.v for row in found] == [stored]
        return
    with pytest.raises(Exception, match=stored) as error:
        write.save(path)
    told(error)


def test_columns_that_keep_the_type_char_are_refused_by_name(
    spark: SparkSession, path: str, view: str
) -> None:
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        for kind in ("CHAR(5)", "VARCHAR(5)"):
            frame = spark.sql(f"SELECT 2L AS id, CAST('ab' AS {kind}) AS v")
            with pytest.raises(Exception, match=r"column 'v' has type .*char\(5\), .* cast it"):
                frame.write.format("ingester").mode("append").save(path)
            frame.selectExpr("id", "CAST(v AS STRING) AS v").write.format("ingester").mode(
                "append"
            ).save(path)
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")


@pytest.mark.parametrize("reader", ["native", "arrow", "source"])
def test_a_frame_whose_files_were_deleted_is_loaded_again(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, path: str, reader: Any
) -> None:
    register(spark)
    put(client, table, pa.record_batch({"id": [2], "v": ["b"]}))
    persist(client, table)

    def load() -> DataFrame:
        if reader == "source":
            return spark.read.format("ingester").load(path)
        return read_table(spark, url, *table, reader=reader)

    old = load()
    compact(spark, url, *table)
    expire(url, *table, retain_s=0, orphan_grace_s=0, keep_versions=1)
    # Spark itself reads the files of a native frame and reports them (docs/spark.md).
    told_by = (
        r"\[FAILED_READ_FILE.FILE_NOT_EXIST\]" if reader == "native" else "Load the table again"
    )
    with pytest.raises(Exception, match=told_by):
        old.collect()
    assert sorted(row.id for row in load().collect()) == [1, 2]
