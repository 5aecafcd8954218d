"""ADBC's Flight SQL driver and Arrow's Flight SQL client, both in Go, against a daemon."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.all_types import all_types, check_same
from tests.drivers.daemon import Daemon
from tests.drivers.sql_tables import ORDERS, TABLES
from tests.drivers.wire import query
from tests.flight_sql_clients.conftest import SecuredDaemon
from tests.flight_sql_clients.programs import GoClient

ENDLESS = "SELECT a.range FROM range(10000000000) a, range(1000) b"
"""A query that yields rows at once and does not end within a test."""
SILENT = "SELECT count(*) FROM range(1000000000) a, range(1000) b WHERE a.range % 7 = b.range % 11"
"""A query that yields its only row after minutes."""
METADATA = (
    "catalogs", "schemas", "tables", "tables_with_schema", "table_types", "primary_keys",
    "exported_keys", "imported_keys", "cross_reference", "type_info", "sql_info",
)  # fmt: skip


@pytest.fixture
def client(go: GoClient, daemon: Daemon) -> GoClient:
    """Both connected to the daemon without TLS."""
    go.answer("adbc.open", options={"uri": daemon.flight})
    go.answer("open", options={"address": daemon.flight.removeprefix("grpc://")})
    return go


def one_row(**columns: Any) -> pa.Table:
    return pa.table({name: [value] for name, value in columns.items()})


# ------------------------------------------------------------------------------------- statements


def test_a_statement_reads_rows_in_files_and_in_buffers(client: GoClient) -> None:
    for operation in ("adbc.query", "execute"):
        found = client.table(operation, sql="SELECT * FROM shop.orders ORDER BY id")
        assert found.to_pylist() == ORDERS.to_pylist()


def test_every_type_arrives_by_value(client: GoClient) -> None:
    wanted = all_types("us")
    found = client.table("adbc.query", sql="SELECT * FROM types.every ORDER BY n")
    for field in found.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            at = wanted.schema.get_field_index(field.name)
            utc = wanted[field.name].cast(pa.timestamp(field.type.unit, field.type.tz))
            wanted = wanted.set_column(at, field.name, utc)
    wanted = wanted.cast(found.schema)
    check_same(found, wanted)


def test_a_statement_takes_parameters_with_their_types(client: GoClient) -> None:
    text = "SELECT customer FROM shop.orders WHERE id = ? AND paid = ?"
    found = client.table("adbc.query", sql=text, parameters=one_row(a=1, b=True))
    assert found.to_pylist() == [{"customer": "ann"}]


def test_a_parameter_may_be_null(client: GoClient) -> None:
    rows = one_row(a=pa.scalar(None, pa.int64()).as_py())
    found = client.table("adbc.query", sql="SELECT ?::BIGINT IS NULL AS n", parameters=rows)
    assert found.to_pylist() == [{"n": True}]


def test_a_prepared_statement_runs_again_with_other_parameters(client: GoClient) -> None:
    text = "SELECT customer FROM shop.orders WHERE id = $1"
    asked = client.table("prepare", sql=text)
    assert len(asked.schema) == 1
    for number, customer in ((1, "ann"), (2, "bob"), (1, "ann")):
        found = client.table("run_prepared", parameters=one_row(id=number))
        assert found.to_pylist() == [{"customer": customer}]
    client.answer("close_prepared")


def test_the_schema_of_a_statement_is_the_schema_of_its_rows(client: GoClient) -> None:
    text = "SELECT id, placed, amount * 2 AS twice FROM shop.orders"
    told = client.table("execute_schema", sql=text)
    assert told.schema == client.table("execute", sql=text).schema


def test_a_header_sets_the_default_namespace(go: GoClient, daemon: Daemon) -> None:
    header = {"adbc.flight.sql.rpc.call_header.schema": "shop"}
    go.answer("adbc.open", options={"uri": daemon.flight, **header})
    assert go.table("adbc.query", sql="SELECT id FROM orders").num_rows == 3


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "status", "part"),
    [
        ("SELEC 1", "Invalid Argument", "SELEC"),
        ("SELECT * FROM shop.nothing", "Invalid Argument", "nothing"),
        ("SELECT nothing FROM shop.orders", "Invalid Argument", "nothing"),
        ("SELECT 1; SELECT 2", "Invalid Argument", "statement"),
        ("INSERT INTO shop.orders VALUES (1)", "Invalid Argument", ""),
        ("SELECT 'x'::INT", "Invalid Argument", "x"),
    ],
)
def test_an_error_has_a_status_and_our_message(
    client: GoClient, text: str, status: str, part: str
) -> None:
    told = client.refused("adbc.query", sql=text)
    assert (told.status, part in told.message) == (status, True), told


def test_a_statement_that_changes_rows_is_refused(client: GoClient) -> None:
    for operation in ("adbc.update", "update"):
        told = client.refused(operation, sql="DELETE FROM shop.orders")
        assert "DELETE" in told.message or "cannot change" in told.message, told


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("begin", "BeginTransaction"),
        ("substrait", "CommandStatementSubstraitPlan"),
        ("poll", "PollFlightInfo"),
        ("renew", "RenewFlightEndpoint"),
    ],
)
def test_what_is_not_supported_answers_unimplemented_by_name(
    client: GoClient, operation: str, name: str
) -> None:
    told = client.refused(operation, sql="SELECT 1")
    assert told.grpc == "Unimplemented", told
    # gRPC itself answers a method that the library of the server does not have.
    assert name in told.message or operation == "poll", told


def test_transactions_are_refused_by_the_driver(client: GoClient) -> None:
    assert client.refused("adbc.autocommit", mode="false").status == "Not Implemented"
    assert client.refused("adbc.commit").status == "Invalid State"


# ---------------------------------------------------------------------------------------- cancel


def test_a_cancelled_context_ends_a_query_that_yields_rows(client: GoClient) -> None:
    told = client.refused("adbc.cancel", sql=ENDLESS, after_rows=1)
    assert told.status == "Cancelled", told


def test_a_cancelled_context_ends_a_query_that_yields_none(client: GoClient) -> None:
    told = client.refused("adbc.cancel", sql=SILENT, timeout_s=0.3)
    assert told.status == "Cancelled", told


@pytest.mark.parametrize("operation", ["cancel", "cancel_query"])
def test_a_query_is_cancelled_by_its_flight_info(client: GoClient, operation: str) -> None:
    told = client.answer(operation, sql=ENDLESS)
    assert told.text in ("CANCEL_STATUS_CANCELLED", "CANCEL_RESULT_CANCELLED"), told
    assert told.rows is not None and told.rows < 2_000
    assert told.failure is not None and "cancelled" in told.failure.message, told


# ---------------------------------------------------------------------------------------- metadata


def names(objects: pa.Table) -> set[tuple[str, str]]:
    return {
        (schema["db_schema_name"], table["table_name"])
        for catalog in objects.to_pylist()
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"] or ()
    }


def test_get_objects_lists_catalog_namespaces_tables_and_columns(client: GoClient) -> None:
    (catalog,) = client.table("adbc.objects", depth=1).to_pylist()
    assert catalog == {"catalog_name": "ingester", "catalog_db_schemas": None}
    (catalog,) = client.table("adbc.objects", depth=2).to_pylist()
    found = [schema["db_schema_name"] for schema in catalog["catalog_db_schemas"]]
    assert [name for name in found if name != "types"] == ["acme", "shop"]
    found_names = names(client.table("adbc.objects", depth=3))
    assert found_names - {("types", "every")} == TABLES
    (catalog,) = client.table("adbc.objects", depth=0, schema="shop", table="orders").to_pylist()
    (table,) = catalog["catalog_db_schemas"][0]["db_schema_tables"]
    columns = [each["column_name"] for each in table["table_columns"]]
    assert (columns, table["table_type"]) == (ORDERS.schema.names, "TABLE")


def test_get_objects_takes_patterns(client: GoClient) -> None:
    assert names(client.table("adbc.objects", depth=3, schema="sh%", table="a_b")) == {
        ("shop", "a_b"),
        ("shop", "axb"),
    }
    assert names(client.table("adbc.objects", depth=3, table=r"a\_b")) == {("shop", "a_b")}
    assert names(client.table("adbc.objects", depth=3, types=["VIEW"])) == set()
    assert client.table("adbc.objects", depth=3, catalog="other").num_rows == 0


def test_the_schema_of_a_table_is_the_schema_of_its_rows(client: GoClient) -> None:
    found = client.table("adbc.table_schema", schema="shop", table="orders").schema
    read = client.table("adbc.query", sql="SELECT * FROM shop.orders").schema
    assert (found.names, found.types) == (read.names, read.types)
    assert not found.field("id").nullable
    told = client.refused("adbc.table_schema", schema="shop", table="nothing")
    assert told.status == "Not Found", told


def test_table_types_and_info_are_given(client: GoClient) -> None:
    assert client.table("adbc.table_types")["table_type"].to_pylist() == ["TABLE"]
    found = client.table("adbc.info", codes=[0, 1, 3, 4]).to_pylist()
    assert {row["info_name"]: row["info_value"] for row in found}[0] == "ingester"


@pytest.mark.parametrize("mode", METADATA)
def test_the_schema_of_metadata_is_the_schema_of_its_rows(client: GoClient, mode: str) -> None:
    table = {"schema": "shop", "table": "orders"} if mode.endswith(("keys", "ce")) else {}
    found = client.table("metadata", mode=mode, **table)
    assert found.schema == client.table("metadata_schema", mode=mode).schema


def test_primary_keys_are_listed_in_order(client: GoClient) -> None:
    (key,) = client.table(
        "metadata", mode="primary_keys", schema="shop", table="orders"
    ).to_pylist()
    assert (key["column_name"], key["key_sequence"]) == ("id", 1)
    found = client.table("metadata", mode="primary_keys", schema="shop", table="regions")
    assert found.num_rows == 0


# ---------------------------------------------------------------------------------------- ingest


def test_ingested_rows_are_readable_when_the_call_returns(client: GoClient, daemon: Daemon) -> None:
    rows = ORDERS.select(["id", "customer", "amount", "placed"])
    place = {"schema": "ingested", "table": "orders"}
    assert client.answer("adbc.ingest", **place, mode="create", parameters=rows).rows == 3
    with fl.connect(daemon.flight) as plain:
        assert query(plain, ("ingested", "orders")).num_rows == 3
    assert client.answer("adbc.ingest", **place, mode="append", parameters=rows).rows == 3
    found = client.table("adbc.query", sql="SELECT * FROM ingested.orders ORDER BY id")
    assert found.slice(0, 1).to_pylist() == rows.slice(0, 1).to_pylist()
    assert found.num_rows == 6


def test_ingest_into_an_existing_or_missing_table_follows_its_mode(client: GoClient) -> None:
    rows = one_row(x=1)
    place = {"schema": "ingested", "table": "modes", "parameters": rows}
    assert client.refused("adbc.ingest", **place, mode="append").status == "Not Found"
    assert client.answer("adbc.ingest", **place, mode="create_append").rows == 1
    assert client.answer("adbc.ingest", **place, mode="create_append").rows == 1
    told = client.refused("adbc.ingest", **place, mode="create")
    assert (told.status, "exists" in told.message) == ("Invalid Argument", True), told
    told = client.refused("adbc.ingest", **place, mode="append", temporary=True)
    assert "temporary" in told.message.lower()


# ---------------------------------------------------------------------------------------- security


def test_tls_and_tokens_hide_the_tables_of_others(go: GoClient, secured: SecuredDaemon) -> None:
    daemon, made = secured
    ca = made.ca.read_text()
    for token, tables in (("all", TABLES), ("acme", {("acme", "orders")})):
        options = {
            "uri": daemon.flight,
            "adbc.flight.sql.client_option.tls_root_certs": ca,
            "adbc.flight.sql.authorization_header": f"Bearer {made.tokens[token]}",
        }
        go.answer("adbc.open", options=options)
        assert names(go.table("adbc.objects", depth=3)) == tables
    told = go.refused("adbc.query", sql="SELECT * FROM shop.orders")
    assert told.status == "Invalid Argument" and "orders" in told.message, told
    assert go.table("adbc.query", sql="SELECT * FROM acme.orders").num_rows == 1
    rows = one_row(x=1)
    told = go.refused("adbc.ingest", schema="shop", table="t", mode="create", parameters=rows)
    assert told.status == "Unauthorized", told


def test_a_call_without_a_token_is_refused(go: GoClient, secured: SecuredDaemon) -> None:
    options = {
        "uri": secured.daemon.flight,
        "adbc.flight.sql.client_option.tls_root_certs": secured.secured.ca.read_text(),
    }
    go.answer("adbc.open", options=options)
    assert go.refused("adbc.query", sql="SELECT 1").status == "Unauthenticated"
