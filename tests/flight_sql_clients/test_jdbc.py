"""The Flight SQL JDBC driver from Maven, unmodified, against a daemon.

The driver's own limits are pinned here, so that a later version shows that they are gone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaGateway

from tests.drivers.all_types import all_types
from tests.drivers.daemon import Daemon
from tests.drivers.sql_tables import TABLES
from tests.flight_sql_clients.conftest import SecuredDaemon
from tests.flight_sql_clients.jdbc import Connection, dicts, failure, rows
from tests.flight_sql_clients.test_go import ENDLESS

PLAIN = {"useEncryption": "false"}


def url(address: str) -> str:
    return re.sub(r"^grpc(\+tls)?://", "jdbc:arrow-flight-sql://", address)


@pytest.fixture
def connection(java: JavaGateway, daemon: Daemon) -> Iterator[Connection]:
    with Connection(java, url(daemon.flight), PLAIN) as connection:
        yield connection


# ------------------------------------------------------------------------------------- statements


def test_a_statement_reads_rows_in_files_and_in_buffers(connection: Connection) -> None:
    found = connection.query("SELECT id, customer, amount, paid FROM shop.orders ORDER BY id")
    assert found == [
        (1, "ann", Decimal("10.50"), True),
        (2, "bob", Decimal("0.01"), False),
        (3, None, Decimal("-7.00"), None),
    ]


def test_a_prepared_statement_runs_again_with_other_parameters(connection: Connection) -> None:
    statement = connection.java.prepareStatement(
        "SELECT customer FROM shop.orders WHERE id = CAST(? AS BIGINT)"
    )
    assert statement.getParameterMetaData().getParameterCount() == 1
    for number, customer in ((1, "ann"), (2, "bob"), (1, "ann")):
        statement.setLong(1, number)
        assert rows(statement.executeQuery()) == [(customer,)]
    statement.close()


def test_a_prepared_statement_that_has_no_values_yet_is_refused(connection: Connection) -> None:
    statement = connection.java.prepareStatement("SELECT CAST(? AS BIGINT) AS n")
    told = failure(statement.executeQuery)
    assert told.kind.startswith("java.sql."), told
    statement.close()


@pytest.mark.parametrize(
    ("kind", "setter", "value", "wanted"),
    [
        ("BOOLEAN", "setBoolean", True, True),
        ("BIGINT", "setLong", -(1 << 63), -(1 << 63)),
        ("INTEGER", "setInt", 7, 7),
        ("DOUBLE", "setDouble", 0.1, 0.1),
        ("VARCHAR", "setString", "é😀", "é😀"),
    ],
)
def test_a_typed_parameter_arrives_as_it_is(
    connection: Connection, kind: str, setter: str, value: Any, wanted: Any
) -> None:
    statement = connection.java.prepareStatement(f"SELECT CAST(? AS {kind}) AS x")
    getattr(statement, setter)(1, value)
    assert rows(statement.executeQuery()) == [(wanted,)]
    statement.close()


def test_a_parameter_takes_the_type_of_the_column_beside_it(connection: Connection) -> None:
    found = connection.prepared("SELECT customer FROM shop.orders WHERE customer = ?", "ann")
    assert found == [("ann",)]


def test_a_parameter_without_a_type_takes_a_text(connection: Connection) -> None:
    assert connection.prepared("SELECT ? AS x", "a") == [("a",)]


# ---------------------------------------------------------------------------------------- types

VALUES = [
    "b", "i8", "i16", "i32", "i64", "i53", "f32", "f64", "d38", "d10", "d0", "s", "x",
]  # fmt: skip


@pytest.mark.parametrize("column", VALUES)
def test_a_type_arrives_by_value(connection: Connection, column: str) -> None:
    found = [row[0] for row in connection.query(f"SELECT {column} FROM types.every ORDER BY n")]
    wanted = all_types("us")[column].to_pylist()
    kind = all_types("us").schema.field(column).type
    if pa.types.is_floating(kind):
        assert list(map(repr, found)) == list(map(repr, wanted))
    else:
        assert found == wanted


def test_dates_and_times_arrive_in_the_years_that_java_prints(connection: Connection) -> None:
    text = "SELECT DATE '2026-03-01' AS d, TIMESTAMP '2026-03-01 12:30:00.000001' AS t"
    assert connection.query(text) == [("2026-03-01", "2026-03-01 12:30:00.000001")]


def test_a_time_with_a_zone_is_read_as_timestamp_or_text(connection: Connection) -> None:
    statement = connection.java.createStatement()
    result = statement.executeQuery("SELECT placed FROM shop.orders WHERE id = 1")
    assert result.next()
    # A limit of the driver.
    assert failure(result.getObject, 1).kind == "java.lang.RuntimeException"
    assert result.getTimestamp(1).toString() == "2026-03-01 12:30:00.0"
    assert result.getString(1).startswith("2026-03-01")
    statement.close()


def test_unsigned_integers_need_a_cast(connection: Connection) -> None:
    # A limit of the driver: it reads unsigned integers as signed ones.
    assert connection.query("SELECT 255::UTINYINT") in ([(-1,)], [(255,)])
    assert connection.query("SELECT 255::UTINYINT::SMALLINT AS n") == [(255,)]


def test_nested_values_arrive(connection: Connection) -> None:
    text = "SELECT [1, 2] AS l, {'a': 1} AS s, MAP {'k': 1} AS m"
    ((items, struct, pairs),) = connection.query(text)
    assert ("1" in items, "a" in struct, "k" in pairs) == (True, True, True)


def test_columns_are_described_with_label_type_and_precision(connection: Connection) -> None:
    statement = connection.java.createStatement()
    told = statement.executeQuery(
        "SELECT id, amount, customer AS who FROM shop.orders"
    ).getMetaData()
    found = [
        (told.getColumnLabel(at), told.getColumnTypeName(at), told.getPrecision(at))
        for at in (1, 2, 3)
    ]
    assert [each[0] for each in found] == ["id", "amount", "who"]
    assert [each[1] for each in found] == ["BIGINT", "DECIMAL", "VARCHAR"]
    assert found[1][2] == 10
    statement.close()


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM shop.nothing", "nothing"),
        ("SELECT 1; SELECT 2", "statement"),
        ("DROP TABLE shop.orders", ""),
        ("SELECT 'x'::INT", "x"),
    ],
)
def test_an_error_is_an_sql_exception_with_our_message(
    connection: Connection, text: str, part: str
) -> None:
    told = failure(connection.query, text)
    assert told.kind.startswith("java.sql."), told
    assert part in told.message, told
    assert "Traceback" not in told.message and ".py" not in told.message, told


def test_a_statement_that_changes_rows_is_refused(connection: Connection) -> None:
    statement = connection.java.createStatement()
    told = failure(statement.executeUpdate, "DELETE FROM shop.orders")
    assert told.kind.startswith("java.sql."), told
    statement.close()


# ---------------------------------------------------------------------------------------- cancel


def test_a_running_query_is_cancelled_from_another_thread(connection: Connection) -> None:
    statement = connection.java.createStatement()
    result = statement.executeQuery(ENDLESS)
    assert result.next()
    other = threading.Thread(target=statement.cancel)
    other.start()
    other.join(10)
    assert not other.is_alive()

    def read_all() -> None:
        while result.next():
            pass

    told = failure(read_all)
    assert told.kind.startswith("java.sql."), told
    assert connection.query("SELECT 1") == [(1,)]


def test_a_result_that_is_closed_early_frees_its_worker(connection: Connection) -> None:
    for _ in range(6):
        statement = connection.java.createStatement()
        assert statement.executeQuery(ENDLESS).next()
        statement.close()
    assert connection.query("SELECT 1") == [(1,)]


# ---------------------------------------------------------------------------------------- security


def secure(java: JavaGateway, secured: SecuredDaemon, token: str) -> Connection:
    properties = {
        "tlsRootCerts": str(secured.secured.ca),
        "token": secured.secured.tokens[token],
    }
    return Connection(java, url(secured.daemon.flight), properties)


def test_tls_and_tokens_hide_the_tables_of_others(
    java: JavaGateway, secured: SecuredDaemon
) -> None:
    for token, tables in (("all", TABLES), ("acme", {("acme", "orders")})):
        with secure(java, secured, token) as connection:
            found = dicts(connection.metadata.getTables(None, None, "%", None))
            assert {(row["TABLE_SCHEM"], row["TABLE_NAME"]) for row in found} == tables
    with secure(java, secured, "acme") as connection:
        assert connection.query("SELECT count(*) FROM acme.orders") == [(1,)]
        assert "orders" in failure(connection.query, "SELECT * FROM shop.orders").message


def test_the_token_is_also_taken_as_a_password(java: JavaGateway, secured: SecuredDaemon) -> None:
    properties = {
        "tlsRootCerts": str(secured.secured.ca),
        "user": "anyone",
        "password": secured.secured.tokens["acme"],
    }
    with Connection(java, url(secured.daemon.flight), properties) as connection:
        assert connection.query("SELECT count(*) FROM acme.orders") == [(1,)]


@pytest.mark.parametrize("properties", [{"token": "wrong"}, {"user": "me", "password": "wrong"}])
def test_a_wrong_token_is_refused_when_the_driver_connects(
    java: JavaGateway, secured: SecuredDaemon, properties: dict[str, str]
) -> None:
    told = {"tlsRootCerts": str(secured.secured.ca), **properties}
    address = url(secured.daemon.flight)
    refused = failure(Connection, java, address, told)
    assert "UNAUTHENTICATED" in refused.message, refused


def test_a_connection_without_a_token_is_refused(java: JavaGateway, secured: SecuredDaemon) -> None:
    properties = {"tlsRootCerts": str(secured.secured.ca)}
    with Connection(java, url(secured.daemon.flight), properties) as connection:
        told = failure(connection.query, "SELECT 1")
        assert "token" in told.message.lower(), told


def test_the_schema_of_the_url_is_the_default_namespace(java: JavaGateway, daemon: Daemon) -> None:
    with Connection(java, url(daemon.flight) + "/?schema=shop", PLAIN) as connection:
        assert connection.query("SELECT count(*) FROM orders") == [(3,)]
