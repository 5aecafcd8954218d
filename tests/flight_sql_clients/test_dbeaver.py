"""The questions that DBeaver's generic driver asks JDBC, with its arguments, in its order.

Source: dbeaver/dbeaver, ``JDBCDataSource``, ``JDBCSQLDialect``, ``GenericDataSource``,
``GenericMetaModel``, ``GenericTableBase``, ``IndexCache``, ``JDBCUtils.isConnectionAlive``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway

from tests.drivers.daemon import Daemon
from tests.drivers.sql_tables import ORDERS_SCHEMA, TABLES
from tests.flight_sql_clients.jdbc import Connection, dicts, rows
from tests.flight_sql_clients.test_jdbc import PLAIN, url

CATALOG = "ingester"


@pytest.fixture(scope="module")
def connection(java: JavaGateway, daemon: Daemon) -> Iterator[Connection]:
    with Connection(java, url(daemon.flight), PLAIN) as connection:
        yield connection


@pytest.fixture(scope="module")
def metadata(connection: Connection) -> Any:
    return connection.metadata


def escaped(metadata: Any, name: str) -> str:
    """What ``JDBCUtils.escapeWildCards`` makes of a name."""
    escape = metadata.getSearchStringEscape()
    assert escape
    return name.replace("%", f"{escape}%").replace("_", f"{escape}_")


def test_every_property_of_the_database_can_be_read(metadata: Any, java: JavaGateway) -> None:
    told = {}
    for method in metadata.getClass().getMethods():
        name = method.getName()
        if method.isDefault():
            continue
        if method.getParameterCount() or method.getReturnType().getName() in (
            "java.sql.ResultSet", "java.sql.Connection", "void", "java.lang.Class",
        ):  # fmt: skip
            continue
        if method.getDeclaringClass().getName() == "java.lang.Object":
            continue
        told[name] = getattr(metadata, name)()
    assert told["getDatabaseProductName"] == "ingester"
    assert told["getDatabaseProductVersion"]
    assert told["getIdentifierQuoteString"] == '"'
    assert told["getSearchStringEscape"] == "\\"
    assert told["getCatalogTerm"], told["getSchemaTerm"]
    assert told["isReadOnly"] is True
    assert told["isCatalogAtStart"] is True
    assert told["supportsTransactions"] is False
    for name in (
        "supportsGroupBy", "supportsOuterJoins", "supportsUnion", "supportsUnionAll",
        "supportsSubqueriesInExists", "supportsCorrelatedSubqueries", "supportsColumnAliasing",
        "supportsExpressionsInOrderBy", "supportsLikeEscapeClause", "supportsFullOuterJoins",
    ):  # fmt: skip
        assert told[name] is True, name
    assert "select" in told["getSQLKeywords"].lower() or told["getSQLKeywords"] is not None


def test_isolation_levels_and_result_sets_are_asked_with_an_argument(metadata: Any) -> None:
    for level in (0, 1, 2, 4, 8):
        assert metadata.supportsTransactionIsolationLevel(level) in (True, False)
    assert metadata.supportsResultSetType(1003) is True
    assert metadata.supportsConvert(4, 12) in (True, False)


def test_the_default_catalog_and_schema_are_read(connection: Connection) -> None:
    connection.java.getCatalog()
    connection.java.getSchema()
    connection.java.getClientInfo()
    assert connection.java.getAutoCommit() is True


def test_the_tree_is_read_from_the_catalog_down_to_columns(
    connection: Connection, metadata: Any
) -> None:
    dicts(metadata.getTypeInfo())
    assert [row["TABLE_TYPE"] for row in dicts(metadata.getTableTypes())] == ["TABLE"]
    assert [row["TABLE_CAT"] for row in dicts(metadata.getCatalogs())] == [CATALOG]
    listed = dicts(metadata.getSchemas(CATALOG, "%"))
    assert {row["TABLE_CATALOG"] for row in listed} == {CATALOG}
    schemas = [row["TABLE_SCHEM"] for row in listed]
    assert [name for name in schemas if name in ("acme", "shop")] == ["acme", "shop"]
    found = set()
    for schema in schemas:
        for row in dicts(metadata.getTables(CATALOG, escaped(metadata, schema), "%", None)):
            assert row["TABLE_TYPE"] == "TABLE"
            found.add((row["TABLE_SCHEM"], row["TABLE_NAME"]))
    assert {name for name in found if name[0] in ("acme", "shop")} == TABLES


def test_the_columns_of_one_table_are_read_by_its_escaped_name(metadata: Any) -> None:
    name = escaped(metadata, "a_b")
    found = dicts(metadata.getColumns(CATALOG, "shop", name, "%"))
    assert [(row["TABLE_NAME"], row["COLUMN_NAME"]) for row in found] == [("a_b", "x")]
    found = dicts(metadata.getColumns(CATALOG, "shop", "orders", "%"))
    assert [row["COLUMN_NAME"] for row in found] == ORDERS_SCHEMA.names
    assert [row["ORDINAL_POSITION"] for row in found] == list(range(1, 8))
    assert [row["TYPE_NAME"] for row in found] == [
        "BIGINT", "VARCHAR", "DECIMAL", "DATE", "TIMESTAMP WITH TIME ZONE", "BOOLEAN", "DOUBLE",
    ]  # fmt: skip
    by_name = {row["COLUMN_NAME"]: row for row in found}
    assert (by_name["amount"]["COLUMN_SIZE"], by_name["amount"]["DECIMAL_DIGITS"]) == (10, 2)
    assert (by_name["id"]["IS_NULLABLE"], by_name["customer"]["IS_NULLABLE"]) == ("NO", "YES")


def test_all_columns_of_a_schema_are_read_at_once(metadata: Any) -> None:
    found = dicts(metadata.getColumns(CATALOG, "shop", "%", "%"))
    assert {("shop", row["TABLE_NAME"]) for row in found} == {t for t in TABLES if t[0] == "shop"}


def test_columns_of_every_type_have_a_type_name(metadata: Any) -> None:
    found = dicts(metadata.getColumns(CATALOG, "types", "every", "%"))
    assert len(found) > 20
    assert [row["COLUMN_NAME"] for row in found if not row["TYPE_NAME"]] == []


def test_keys_are_read_for_one_table_and_for_all(metadata: Any) -> None:
    (key,) = dicts(metadata.getPrimaryKeys(CATALOG, "shop", "orders"))
    assert (key["COLUMN_NAME"], key["KEY_SEQ"]) == ("id", 1)
    assert dicts(metadata.getPrimaryKeys(CATALOG, "shop", "regions")) == []
    # The table of a key is a name and not a pattern; DBeaver asks for all with a pattern.
    for table in ("%", "order_"):
        assert dicts(metadata.getPrimaryKeys(CATALOG, "shop", table)) == []
    for table in ("orders", "%"):
        assert dicts(metadata.getImportedKeys(CATALOG, "shop", table)) == []
        assert dicts(metadata.getExportedKeys(CATALOG, "shop", table)) == []
    reference = (CATALOG, "shop", "orders", CATALOG, "shop", "regions")
    assert dicts(metadata.getCrossReference(*reference)) == []


def test_indexes_procedures_and_functions_are_empty(metadata: Any) -> None:
    for result in (
        metadata.getIndexInfo(CATALOG, "shop", "orders", False, True),
        metadata.getProcedures(CATALOG, "shop", "%"),
        metadata.getFunctions(CATALOG, "shop", "%"),
        # DataGrip and others also ask these.
        metadata.getUDTs(CATALOG, "shop", "%", None),
        metadata.getSuperTables(CATALOG, "shop", "%"),
        metadata.getSuperTypes(CATALOG, "shop", "%"),
        metadata.getAttributes(CATALOG, "shop", "%", "%"),
        metadata.getVersionColumns(CATALOG, "shop", "orders"),
        metadata.getBestRowIdentifier(CATALOG, "shop", "orders", 0, True),
        metadata.getTablePrivileges(CATALOG, "shop", "%"),
        metadata.getColumnPrivileges(CATALOG, "shop", "orders", "%"),
        metadata.getProcedureColumns(CATALOG, "shop", "%", "%"),
        metadata.getFunctionColumns(CATALOG, "shop", "%", "%"),
        metadata.getPseudoColumns(CATALOG, "shop", "%", "%"),
        metadata.getClientInfoProperties(),
    ):
        assert result is None or dicts(result) == []


def test_a_search_over_all_schemas_takes_types(connection: Connection, metadata: Any) -> None:
    tables = connection.strings(["TABLE"])
    found = dicts(metadata.getTables(None, None, "%orders%", tables))
    assert {(row["TABLE_SCHEM"], row["TABLE_NAME"]) for row in found} >= {
        ("acme", "orders"), ("shop", "orders"),
    }  # fmt: skip
    assert dicts(metadata.getTables(None, None, "%", connection.strings(["VIEW"]))) == []


def test_the_connection_is_pinged_by_a_table_that_does_not_exist(
    connection: Connection, metadata: Any
) -> None:
    assert dicts(metadata.getTables(None, None, "DBEAVERFAKETABLENAMEFORPING", None)) == []
    assert connection.java.isValid(5) is True


def test_a_table_is_opened_with_quoted_names_and_a_limit(connection: Connection) -> None:
    statement = connection.java.createStatement()
    statement.setMaxRows(2)
    statement.setFetchSize(2)
    statement.setQueryTimeout(30)
    result = statement.executeQuery('SELECT * FROM ingester.shop."odd.name-1"')
    assert result.next()
    statement.close()
    counting = "SELECT COUNT(*) FROM (SELECT * FROM shop.regions) dbvrcnt"
    assert connection.query(counting) == [(2,)]
    assert connection.query('SELECT x."Region" FROM shop.regions AS x ORDER BY 1') == [
        ("north",), ("south",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # A limit of the driver: it doubles the columns of an answer without rows.
        ("SELECT * FROM shop.orders WHERE false", ORDERS_SCHEMA.names * 2),
        ("SELECT table_schema FROM information_schema.tables", ["table_schema"]),
        ("DESCRIBE shop.a_b", ["column_name", "column_type", "null", "key", "default", "extra"]),
    ],
)
def test_an_answer_has_the_names_of_its_columns(
    connection: Connection, text: str, names: list[str]
) -> None:
    statement = connection.java.createStatement()
    result = statement.executeQuery(text)
    told = result.getMetaData()
    assert [told.getColumnName(at) for at in range(1, told.getColumnCount() + 1)] == names
    rows(result)
    statement.close()
