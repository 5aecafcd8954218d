"""ADBC's Flight SQL driver, unmodified, against a real daemon: statements, parameters, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import adbc_driver_flightsql.dbapi as dbapi
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.server.flight_sql.sql_info import FACTS
from tests.drivers.all_types import all_types, plain
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, put


def connect(daemon: Daemon, **options: str) -> Any:
    return dbapi.connect(daemon.flight, db_kwargs=options, autocommit=True)


@pytest.fixture(scope="module")
def adbc(shared: Daemon) -> Iterator[Any]:
    with connect(shared) as connection:
        yield connection


def rows(connection: Any, text: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        return list(cursor.fetchall())


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_every_type_comes_back_by_value(shared: Daemon, adbc: Any, table: Table, unit: str) -> None:
    written = all_types(unit)
    with fl.connect(shared.flight) as client:
        create(client, table, written.schema, timestamp_unit=unit)
        put(client, table, written.combine_chunks().to_batches()[0])
    with adbc.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table[0]}.{table[1]} ORDER BY n")
        found = cursor.fetch_arrow_table()
    assert found.schema.names == written.schema.names
    for name in written.schema.names:
        there, here = (plain(each[name].combine_chunks()) for each in (found, written))
        assert there == here, name


VALUES = [
    True,
    -(2**63),
    2**63 - 1,
    0.1,
    float("inf"),
    "",
    "é😀'\"",
    b"\x00\xff",
    date(1969, 12, 31),
    datetime(2020, 2, 29, 12, 30, 15, 123456),
    datetime(2020, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
    Decimal("-12345678901234567890.0123456789"),
    None,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_parameter_keeps_its_value(adbc: Any, value: Any) -> None:
    assert rows(adbc, "SELECT ? AS x, ? IS NULL AS is_null", (value, value)) == [
        (value, value is None)
    ]


def test_a_prepared_statement_is_run_again_with_other_parameters(
    shared: Daemon, adbc: Any, table: Table
) -> None:
    with fl.connect(shared.flight) as client:
        put(client, table, pa.record_batch({"n": [1, 2, 3], "s": ["a", "b", None]}))
    text = f"SELECT n FROM {table[0]}.{table[1]} WHERE s = $1 OR n = $2 ORDER BY n"
    with adbc.cursor() as cursor:
        for parameters, expected in ((("a", 3), [(1,), (3,)]), (("b", 0), [(2,)])):
            cursor.execute(text, parameters)
            assert cursor.fetchall() == expected
        assert cursor.adbc_prepare(text).names == ["1", "2"]


def test_rows_of_parameters_are_refused_when_there_are_several(adbc: Any) -> None:
    both = pa.record_batch({"1": [1, 2]})
    with adbc.cursor() as cursor, pytest.raises(dbapi.ProgrammingError, match="takes exactly one"):
        cursor.execute("SELECT ?", both)


@pytest.mark.parametrize("text", ["INSERT INTO it.t VALUES (1)", "CREATE TABLE t (i INT)"])
def test_a_statement_that_writes_is_refused_and_the_error_says_how_to_write(
    adbc: Any, text: str
) -> None:
    with adbc.cursor() as cursor, pytest.raises(dbapi.ProgrammingError, match="adbc_ingest"):
        cursor.execute(text)
    with adbc.cursor() as cursor, pytest.raises(dbapi.ProgrammingError, match="adbc_ingest"):
        cursor.executemany("SELECT ?", [(1,), (2,)])


def test_transactions_are_not_supported(shared: Daemon) -> None:
    with (
        pytest.warns(Warning, match="Cannot disable autocommit"),
        dbapi.connect(shared.flight),
    ):
        pass


def test_pandas_and_polars_read_a_query(shared: Daemon, adbc: Any, table: Table) -> None:
    with fl.connect(shared.flight) as client:
        put(client, table, pa.record_batch({"n": [1, 2], "s": ["a", None]}))
    text = f"SELECT * FROM {table[0]}.{table[1]} ORDER BY n"
    assert pd.read_sql(text, adbc).to_dict("list") == {"n": [1, 2], "s": ["a", None]}
    assert pl.read_database(text, adbc).rows() == [(1, "a"), (2, None)]
    options = {"parameters": [2]}
    some = pl.read_database(
        f"SELECT n FROM {table[0]}.{table[1]} WHERE n = ?", adbc, execute_options=options
    )
    assert some.rows() == [(2,)]


def test_the_schema_is_told_without_running_the_query(adbc: Any) -> None:
    with adbc.cursor() as cursor:
        told = cursor.adbc_execute_schema("SELECT 1 AS i, 'x' AS s, error('it ran') AS e")
    assert told.names == ["i", "s", "e"]


def test_a_partition_is_read_by_another_connection(shared: Daemon, adbc: Any) -> None:
    with adbc.cursor() as cursor, connect(shared) as other, other.cursor() as reader:
        partitions, schema = cursor.adbc_execute_partitions("SELECT 42 AS x")
        assert (len(partitions), schema.names) == (1, ["x"])
        reader.adbc_read_partition(partitions[0])
        assert reader.fetchall() == [(42,)]


def test_catalogues_schemas_and_tables_are_listed(shared: Daemon, adbc: Any) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.decimal128(10, 2))]
    )
    with fl.connect(shared.flight) as client:
        create(client, ("meta", "a_b"), schema, primary_key=["id"])
        create(client, ("meta", "axb"), schema)
        create(client, ("meta2", "other"), schema)
    assert adbc.adbc_get_table_types() == ["TABLE"]

    def listed(**filters: str) -> dict[str, list[str]]:
        found = adbc.adbc_get_objects(depth="tables", **filters).read_all().to_pylist()
        assert [each["catalog_name"] for each in found] == ["ingester"]
        return {
            each["db_schema_name"]: [table["table_name"] for table in each["db_schema_tables"]]
            for each in found[0]["catalog_db_schemas"]
        }

    assert listed(db_schema_filter="meta") == {"meta": ["a_b", "axb"]}
    assert listed(db_schema_filter="meta_") == {"meta2": ["other"]}
    assert listed(db_schema_filter="meta%") == {"meta": ["a_b", "axb"], "meta2": ["other"]}
    assert listed(db_schema_filter="meta", table_name_filter="a_b") == {"meta": ["a_b", "axb"]}
    assert listed(db_schema_filter="meta", table_name_filter=r"a\_b") == {"meta": ["a_b"]}
    assert listed(db_schema_filter="nosuch") == {}
    found = adbc.adbc_get_objects(depth="columns", db_schema_filter="meta2").read_all()
    columns = found.to_pylist()[0]["catalog_db_schemas"][0]["db_schema_tables"][0]["table_columns"]
    assert [each["xdbc_type_name"] for each in columns] == ["BIGINT", "DECIMAL"]


def test_the_schema_of_a_table_has_its_types_and_where_it_is(shared: Daemon, adbc: Any) -> None:
    with fl.connect(shared.flight) as client:
        create(client, ("meta3", "t"), pa.schema([pa.field("d", pa.decimal128(10, 2))]))
    found = adbc.adbc_get_table_schema("t", db_schema_filter="meta3").field("d")
    assert found.type == pa.decimal128(10, 2)
    assert found.metadata[b"ARROW:FLIGHT:SQL:DB_SCHEMA_NAME"] == b"meta3"
    assert found.metadata[b"ARROW:FLIGHT:SQL:PRECISION"] == b"10"
    with pytest.raises(dbapi.ProgrammingError, match="NOT_FOUND"):
        adbc.adbc_get_table_schema("nosuch", db_schema_filter="meta3")


def test_the_product_is_named(adbc: Any) -> None:
    told = adbc.adbc_get_info()
    assert (told["vendor_name"], told["vendor_version"]) == (FACTS[0], FACTS[1])


def test_the_default_namespace_is_set_by_a_header(shared: Daemon, adbc: Any, table: Table) -> None:
    with fl.connect(shared.flight) as client:
        put(client, table, pa.record_batch({"n": [7]}))
    text = f"SELECT n FROM {table[1]}"
    with pytest.raises(dbapi.ProgrammingError, match="does not exist"):
        rows(adbc, text)
    header = {"adbc.flight.sql.rpc.call_header.schema": table[0]}
    with connect(shared, **header) as connection:
        assert rows(connection, text) == [(7,)]
        with connection.cursor() as cursor:
            assert cursor.adbc_ingest(table[1], pa.table({"n": [8]}), mode="append") == 1
        assert rows(connection, f"{text} ORDER BY n DESC LIMIT 1") == [(8,)]
