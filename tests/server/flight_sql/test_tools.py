"""The questions that business intelligence tools ask, in their order, by their drivers' own code.

Power BI, Tableau and Excel ask by the ODBC driver of Flight SQL; Power BI also asks by ADBC. JDBC
tools are in ``tests/flight_sql_clients``.

Source: dremio/flightsql-odbc, ``get_info_cache``, ``flight_sql_statement_get_tables``,
``flight_sql_statement_get_columns``, ``flight_sql_get_type_info_reader``; apache/arrow-adbc,
``go/adbc/driver/flightsql``; gizmodata/gizmosql pull request 164; ClickHouse issue 115015
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.protobuf import bytes_field, varint_field
from ingester.server.flight_sql.type_info import described
from tests.drivers.all_types import all_types
from tests.drivers.daemon import Daemon
from tests.drivers.sql_tables import ORDERS_SCHEMA, TABLES, fill
from tests.flight_sql_clients.page import blocks

CATALOG = "ingester"
_TEXTS = {0, 1, 504, 513, 514, 529, 530, 531}
_BOOLS = {3, 500, 501, 502, 506, 515, 516, *range(518, 522), 523, 524, 527, 532, 536, 537, 539, 556,
          563, 565, 566, *range(572, 577)}  # fmt: skip
_LONGS = {503, 505, 507, *range(541, 556), *range(557, 563)}
_BITS = {522, 525, 526, 528, 533, 534, 535, 538, 540, 564, 567}
_LISTS = set(range(508, 513))
KINDS = {
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(_BOOLS, pa.bool_()),
    **dict.fromkeys(_LONGS, pa.int64()),
    **dict.fromkeys(_BITS, pa.int32()),
    **dict.fromkeys(_LISTS, pa.list_(pa.string())),
    517: pa.map_(pa.int32(), pa.list_(pa.int32())),
}
"""The type of each SqlInfo that the drivers of ODBC and JDBC read, without a check of theirs."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("tools")
    with Daemon.start(folder / "data") as daemon, fl.connect(daemon.flight) as client:
        fill(client)
        yield daemon


@pytest.fixture(scope="module")
def odbc(daemon: Daemon) -> Iterator[Odbc]:
    with fl.connect(daemon.flight) as client:
        yield Odbc(client)


@pytest.fixture(scope="module")
def adbc(daemon: Daemon) -> Iterator[flight_sql.Connection]:
    with flight_sql.connect(daemon.flight, autocommit=True) as connection:
        yield connection


class Odbc:
    """Sends the commands of Flight SQL as the ODBC driver does."""

    def __init__(self, client: fl.FlightClient) -> None:
        self._client = client

    def ask(self, name: str, *fields: bytes) -> pa.Table:
        """Return the rows of a command, which must have the announced schema."""
        url = f"type.googleapis.com/arrow.flight.protocol.sql.{name}"
        message = bytes_field(1, url) + bytes_field(2, b"".join(fields))
        info = self._client.get_flight_info(fl.FlightDescriptor.for_command(message))
        (endpoint,) = info.endpoints
        found = self._client.do_get(endpoint.ticket).read_all()
        assert found.schema == info.schema
        return found

    def tables(self, *, schemas: bool = False, **patterns: str) -> list[dict[str, Any]]:
        """CommandGetTables."""
        numbers = {"catalog": 1, "schema": 2, "table": 3, "kind": 4}
        asked = [bytes_field(numbers[name], value) for name, value in patterns.items()]
        rows = self.ask("CommandGetTables", *asked, varint_field(5, schemas)).to_pylist()
        return list(rows)


# ------------------------------------------------------------------------------------------ ODBC


def test_odbc_reads_all_properties_with_the_types_that_it_casts_to(odbc: Odbc) -> None:
    found = odbc.ask("CommandGetSqlInfo")
    assert found.schema.field("info_name").type == pa.uint32()
    kind = found.schema.field("value").type
    codes = [code for chunk in found["value"].chunks for code in chunk.type_codes.to_pylist()]
    given = {
        number: kind.field(kind.type_codes.index(code)).type
        for number, code in zip(found["info_name"].to_pylist(), codes, strict=True)
    }
    assert {n: str(given.get(n)) for n in KINDS} == {n: str(k) for n, k in KINDS.items()}
    values = dict(zip(found["info_name"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert {number: values[number] for number in (0, 3, 504, 513, 563)} == {
        0: "ingester", 3: True, 504: '"', 513: "\\", 563: False,
    }  # fmt: skip
    assert all(values[number] for number in (1, 529, 531, 532))
    # Each bit is the option of that number: full outer joins are option 2, UNION ALL is 1.
    assert {number: values[number].bit_length() - 1 for number in (522, 525, 528, 538, 540)} == {
        522: 1, 525: 2, 528: 2, 538: 3, 540: 1,
    }  # fmt: skip


def test_odbc_lists_catalogs_schemas_and_table_types(odbc: Odbc) -> None:
    """SQLTables with SQL_ALL_CATALOGS, SQL_ALL_SCHEMAS and SQL_ALL_TABLE_TYPES."""
    assert odbc.ask("CommandGetCatalogs").to_pylist() == [{"catalog_name": CATALOG}]
    schemas = odbc.ask("CommandGetDbSchemas", bytes_field(2, "%")).to_pylist()
    assert schemas == [
        {"catalog_name": CATALOG, "db_schema_name": name} for name in ("acme", "shop")
    ]
    assert odbc.ask("CommandGetTableTypes").to_pylist() == [{"table_type": "TABLE"}]


@pytest.mark.parametrize("kinds", [(), ("TABLE",), ("TABLE", "VIEW"), ("BASE TABLE", "TABLE")])
def test_odbc_lists_tables_of_the_kinds_that_it_names(odbc: Odbc, kinds: tuple[str, ...]) -> None:
    asked = [bytes_field(number, "%") for number in (2, 3)]
    asked += [bytes_field(4, kind) for kind in kinds]
    found = odbc.ask("CommandGetTables", *asked).to_pylist()
    assert {(row["db_schema_name"], row["table_name"]) for row in found} == TABLES
    assert {(row["catalog_name"], row["table_type"]) for row in found} == {(CATALOG, "TABLE")}


def test_odbc_finds_nothing_in_other_catalogs_and_in_no_schema(odbc: Odbc) -> None:
    assert odbc.tables(catalog="other") == []
    assert odbc.tables(catalog="") == []
    assert odbc.tables(schema="") == []
    assert odbc.tables(kind="SYSTEM TABLE") == []
    assert odbc.tables(catalog="%") in ([], odbc.tables())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a_b", {"a_b", "axb"}),
        (r"a\_b", {"a_b"}),
        ("a%", {"a_b", "axb"}),
        ("%.name-_", {"odd.name-1"}),
        ("ORDERS", set()),
        ("[a-z]*", set()),
        ("a\\", set()),
    ],
)
def test_a_pattern_is_one_of_sql(odbc: Odbc, pattern: str, names: set[str]) -> None:
    found = {row["table_name"] for row in odbc.tables(schema="shop", table=pattern)}
    assert found == names


def test_odbc_reads_columns_from_the_schemas_of_tables(odbc: Odbc) -> None:
    (row,) = odbc.tables(schemas=True, catalog=CATALOG, schema="shop", table="orders")
    schema = pa.ipc.read_schema(pa.py_buffer(row["table_schema"]))
    assert schema.remove_metadata().names == ORDERS_SCHEMA.names
    told = {field.name: field.metadata for field in schema}
    kinds = {name: meta[b"ARROW:FLIGHT:SQL:TYPE_NAME"].decode() for name, meta in told.items()}
    assert kinds == {
        "id": "BIGINT", "customer": "VARCHAR", "amount": "DECIMAL", "day": "DATE",
        "placed": "TIMESTAMP WITH TIME ZONE", "paid": "BOOLEAN", "weight": "DOUBLE",
    }  # fmt: skip
    amount = told["amount"]
    assert amount[b"ARROW:FLIGHT:SQL:PRECISION"] == b"10"
    assert amount[b"ARROW:FLIGHT:SQL:SCALE"] == b"2"


def test_odbc_finds_every_type_of_a_column_among_the_types(odbc: Odbc) -> None:
    """SQLGetTypeInfo: Power BI does not load a table with a column of a type that is missing."""
    found = odbc.ask("CommandGetXdbcTypeInfo").to_pylist()
    names = {row["type_name"] for row in found}
    (row,) = odbc.tables(schemas=True, schema="shop", table="orders")
    schema = pa.ipc.read_schema(pa.py_buffer(row["table_schema"]))
    assert {field.metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"].decode() for field in schema} <= names
    assert found == sorted(found, key=lambda each: each["data_type"])
    varchar = odbc.ask("CommandGetXdbcTypeInfo", varint_field(1, 12)).to_pylist()
    assert {row["data_type"] for row in varchar} == {12}
    assert odbc.ask("CommandGetXdbcTypeInfo", varint_field(1, 9_999)).num_rows == 0


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_the_types_of_all_columns_that_a_table_can_have_are_listed(odbc: Odbc, unit: str) -> None:
    listed = set(odbc.ask("CommandGetXdbcTypeInfo")["type_name"].to_pylist())
    for field in described(all_types(unit).schema):
        assert field.metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"].decode() in listed, field


# ------------------------------------------------------------------------------------------ ADBC


def test_power_bi_reads_info_and_objects_at_every_depth(adbc: flight_sql.Connection) -> None:
    info = adbc.adbc_get_info()
    assert info["vendor_name"] == "ingester"
    assert info["vendor_version"]
    depths: tuple[Literal["catalogs", "db_schemas", "tables"], ...]
    depths = ("catalogs", "db_schemas", "tables")
    catalogs = [adbc.adbc_get_objects(depth=depth).read_all().to_pylist() for depth in depths]
    assert [[each["catalog_name"] for each in found] for found in catalogs] == [[CATALOG]] * 3
    schemas = {each["db_schema_name"]: each for each in catalogs[-1][0]["catalog_db_schemas"]}
    found = {
        (name, table["table_name"])
        for name, each in schemas.items()
        for table in each["db_schema_tables"]
    }
    assert found == TABLES
    assert adbc.adbc_get_table_types() == ["TABLE"]


def test_power_bi_reads_the_type_names_of_columns(adbc: flight_sql.Connection) -> None:
    (catalog,) = (
        adbc.adbc_get_objects(
            depth="all",
            catalog_filter=CATALOG,
            db_schema_filter="shop",
            table_name_filter="orders",
        )
        .read_all()
        .to_pylist()
    )
    (table,) = catalog["catalog_db_schemas"][0]["db_schema_tables"]
    columns = table["table_columns"]
    assert [each["column_name"] for each in columns] == ORDERS_SCHEMA.names
    assert [each["ordinal_position"] for each in columns] == list(range(1, 8))
    assert None not in [each["xdbc_type_name"] for each in columns]


def test_power_bi_reads_a_table_after_its_schema(adbc: flight_sql.Connection) -> None:
    schema = adbc.adbc_get_table_schema("orders", db_schema_filter="shop")
    with adbc.cursor() as cursor:
        # The preview, and a query as folding writes it.
        cursor.execute('select * from "ingester"."shop"."orders" limit 1000')
        found = cursor.fetch_arrow_table()
        assert (found.num_rows, found.schema.types) == (3, schema.types)
        cursor.execute(
            'select "_"."customer", sum("_"."amount") as "a0" from "ingester"."shop"."orders" "_"'
            ' where "_"."id" >= 1 group by "_"."customer" order by "_"."customer" nulls last'
        )
        assert [row[0] for row in cursor.fetchall()] == ["ann", "bob", None]


def test_superset_reads_the_information_schema(adbc: flight_sql.Connection) -> None:
    """What SQLAlchemy's dialects for Flight SQL over DuckDB ask, beside ADBC's metadata."""
    with adbc.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_catalog = 'ingester' ORDER BY 1, 2"
        )
        assert set(cursor.fetchall()) == TABLES
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = 'shop' AND table_name = 'orders' ORDER BY ordinal_position"
        )
        assert [row[0] for row in cursor.fetchall()] == ORDERS_SCHEMA.names


@pytest.mark.parametrize(
    "text", ["SELECT 1", "select 1;", "SELECT 1 -- ping", "/* ping */ SELECT 1"]
)
def test_a_connection_is_pinged_by_a_statement(adbc: flight_sql.Connection, text: str) -> None:
    with adbc.cursor() as cursor:
        cursor.execute(text)
        assert cursor.fetchone() == (1,)


# ---------------------------------------------------------------------------------------- the page

PYTHON = blocks("python", "127.0.0.1:8082")


@pytest.mark.parametrize("text", [each for each in PYTHON if "TOKEN" not in each])
def test_a_block_of_the_page_runs(text: str, daemon: Daemon) -> None:
    address = daemon.flight.removeprefix("grpc://")
    names: dict[str, Any] = {}
    exec(text.replace("127.0.0.1:8082", address), names)
    if "adbc_ingest" in text:
        assert names["written"] == 2
    else:
        assert [
            len(names[name]) for name in ("rows", "table", "frame", "other") if name in names
        ] in ([1, 3], [3, 3])
