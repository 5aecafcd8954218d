"""Users of Spark see a refusal as one sentence, in the last line."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    CharType,
    DataType,
    StructType,
    YearMonthIntervalType,
)

from ingester.schema.definition import define_table
from ingester.spark import register
from ingester.spark.errors import RequestRefused, WriteRefused, plainly
from ingester.spark.options import SourceOptions
from ingester.spark.sink.data_files import check_columns
from ingester.spark.source import source, stream_offsets
from ingester.spark.source.source import IngesterSource
from ingester.spark.source.stream import RefusedStream
from ingester.spark.source.stream_offsets import batch_limit
from persist.manifest import Manifest, Proposal, WriterIdentity, commit
from persist.store import open_store
from tests.drivers.wire import Table, create, events, persist, put, query
from tests.spark.loading import limits_batches, load
from tests.spark.test_source_stream import Query, stream

pytestmark = pytest.mark.spark

REQUIRED = pa.field("r", pa.int64(), nullable=False)


def told(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Return Spark's message; fail if it shows several of our files, or an internal error."""
    text = str(error.value)
    ours = re.findall(r'File "[^"]*/(?:ingester/spark|persist)/[^"]*\.py"', text)
    assert len(ours) <= 1, text
    assert "During handling of the above exception" not in text
    return text


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """One row with a column of ``events``."""
    register(spark)
    return spark.createDataFrame([(1,)], "i bigint")


def test_a_table_with_transformers_takes_no_rows_past_them(
    frame: DataFrame, tmp_path: Path
) -> None:
    name = ("it", "transformed")
    plain = define_table(pa.schema({"i": pa.int64()}))
    for primary_key in ([], ["i"]):
        store = open_store(f"file://{tmp_path}/{len(primary_key)}")
        made = plain if not primary_key else define_table(plain.schema, primary_key=primary_key)
        definition = made.with_transformers([("acme.rules:Clean", "1")])
        manifest = Manifest(store, *name)
        commit(manifest, None, Proposal(definition.actions()), WriterIdentity("d", "0" * 16, 1))
        path = f"file://{tmp_path}/{len(primary_key)}/{name[0]}/{name[1]}"
        with pytest.raises(Exception, match=r"has transformers .acme\.rules:Clean.") as error:
            frame.write.format("ingester").mode("append").save(path)
        assert "write through a daemon" in told(error)
        assert manifest.load().file_count == 0


def test_append_is_the_one_mode_and_the_others_say_so(
    client: fl.FlightClient, frame: DataFrame, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema)
    path = f"{url}/{table[0]}/{table[1]}"
    before = Manifest(open_store(url), *table).head()
    # Spark itself refuses these modes and advises to overwrite.
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match=r"cannot be written in the .* mode"):
            frame.write.format("ingester").mode(mode).save(path)
    with pytest.raises(Exception, match="WriteRefused: mode overwrite") as error:
        frame.write.format("ingester").mode("overwrite").save(path)
    assert 'use .mode("append")' in told(error)
    assert Manifest(open_store(url), *table).head() == before
    frame.write.format("ingester").mode("append").save(path)
    assert Manifest(open_store(url), *table).head() == before + 1


def test_what_is_missing_or_wrong_is_told_by_its_option(
    spark: SparkSession, client: fl.FlightClient, frame: DataFrame, url: str, table: Table
) -> None:
    create(client, table, events(0, 1).schema, primary_key=["i"])
    reader = spark.read.format("ingester")
    with pytest.raises(Exception, match="option 'namespace' is missing") as error:
        reader.options(url=url, table="t").load()
    told(error)
    elsewhere = f"{url}/elsewhere"
    for load_it in (
        lambda: load(spark, elsewhere, table),
        lambda: frame.write.format("ingester").mode("append").save(f"{elsewhere}/n/t"),
    ):
        with pytest.raises(Exception, match="does not exist in the store") as error:
            load_it()
        assert elsewhere in told(error)
    keyed = frame.write.format("ingester").mode("append")
    for endpoint in (None, "nonsense://127.0.0.1:1"):
        said = keyed if endpoint is None else keyed.option("endpoint", endpoint)
        with pytest.raises(Exception, match="option endpoint") as error:
            said.save(f"{url}/{table[0]}/{table[1]}")
        told(error)
    both = keyed.option("endpoint", "grpc://127.0.0.1:1").option("ack", "both")
    with pytest.raises(Exception, match="option ack: 'both' must be disk or store") as error:
        both.save(f"{url}/{table[0]}/{table[1]}")
    told(error)


def test_a_task_that_refuses_a_value_says_which(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    schema = pa.schema({"u": pa.uint8(), "d": pa.decimal128(38, 18)}).append(REQUIRED)
    create(client, table, schema)
    register(spark)
    for row, said in (
        ("256 AS u, 1L AS r", "column 'u': 256 is not a value of uint8"),
        ("341000000000000000000BD AS d, 1L AS r", "column 'd': 341000000000000000000 is not"),
        ("1 AS u, CAST(null AS bigint) AS r", "column 'r': 1 nulls in a column that the table"),
        ("1 AS u", "no column 'r', which the table declares as not nullable"),
    ):
        writer = spark.sql(f"SELECT {row}").write.format("ingester").mode("append")
        with pytest.raises(Exception, match=f"WriteRefused: .*{said}") as error:
            writer.save(f"{url}/{table[0]}/{table[1]}")
        told(error)
    assert query(client, table).num_rows == 0


def test_what_is_no_refusal_keeps_its_traceback() -> None:
    def deep() -> None:
        raise TypeError("a fault")

    @plainly
    def call() -> None:
        deep()

    with pytest.raises(TypeError) as error:
        call()
    assert [entry.name for entry in error.traceback][-2:] == ["call", "deep"]


def test_what_a_version_of_spark_lacks_is_refused_by_name(
    client: fl.FlightClient, url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, table, events(0, 1))
    persist(client, table)
    path = f"{url}/{table[0]}/{table[1]}"
    monkeypatch.setattr(stream_offsets, "LIMITS_BATCHES", False)
    limited = SourceOptions.stream({"path": path, "max_rows_per_trigger": "1"})
    with pytest.raises(
        RequestRefused, match=r"max_rows_per_trigger: PySpark 4\..* without the option"
    ):
        batch_limit(limited)
    monkeypatch.setattr(source, "COUNTS_BARE_ROWS", False)
    bare = IngesterSource({"path": path, "columns": ""})
    with pytest.raises(RequestRefused, match=r"columns: PySpark 4\..*the option count"):
        bare.reader(StructType())
    assert isinstance(bare.streamReader(StructType()), RefusedStream)


@pytest.mark.parametrize(
    "kind", [YearMonthIntervalType(), CharType(3), ArrayType(CharType(3)), CalendarIntervalType()]
)
def test_a_type_that_spark_cannot_convert_is_refused_by_name(kind: DataType) -> None:
    definition = define_table(pa.schema({"i": pa.int64(), "m": pa.string()}))
    frame = StructType().add("i", "long").add("m", kind)
    with pytest.raises(WriteRefused, match=r"column 'm' has type .* cast it"):
        check_columns(frame, definition)
    check_columns(StructType().add("i", "long").add("m", "string"), definition)


def test_a_keyed_table_is_refused(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    create(client, table, events(0, 1).schema, primary_key=["i"])
    put(client, table, events(0, 1))
    persist(client, table)
    with pytest.raises(Exception, match="has a primary key") as error:
        Query(spark, url, table, tmp_path).run()
    told(error)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"version": "1"}, "unknown option 'version'"),
        ({"starting_version": "soon"}, "option starting_version: 'soon'"),
        pytest.param(
            {"max_files_per_trigger": "0"},
            "option max_files_per_trigger: '0'",
            marks=limits_batches,
        ),
        pytest.param(
            {"max_files_per_trigger": "1", "max_rows_per_trigger": "1"},
            "give only one of",
            marks=limits_batches,
        ),
    ],
)
def test_an_invalid_option_of_a_stream_is_named(
    client: fl.FlightClient, url: str, table: Table, options: dict[str, str], told: str
) -> None:
    put(client, table, events(0, 1))
    persist(client, table)
    with pytest.raises(ValueError, match=told):
        stream(url, table, **options)
