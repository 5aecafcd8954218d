"""Statements are parsed for their tables, and what DuckDB's parser knows never ends the worker."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from ingester.sql.worker.statement import BadStatement, parse


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM a.t TABLESAMPLE 10%",
        "SELECT * FROM a.t USING SAMPLE 3 ROWS",
        "SELECT * FROM a.t TABLESAMPLE reservoir(5) REPEATABLE (1)",
        "EXPLAIN (SELECT * FROM a.t) UNION ALL (SELECT 1)",
        "EXPLAIN(FROM a.t)",
        "EXPLAIN (ANALYZE, FORMAT json) FROM a.t",
        "EXPLAIN ANALYSE FROM a.t",
        "EXPLAIN (FORMAT json) (FROM a.t)",
    ],
)
def test_the_tables_of_samples_and_explained_queries_are_found(
    connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    assert parse(connection, text).names.tables == [("a", "t")]


@pytest.mark.parametrize(
    "text", ["CONNECT ':memory:'", "DISCONNECT", "CREATE EXTERNAL RESOURCE 'a' AS b"]
)
def test_statements_without_a_name_in_duckdbs_package_are_refused(
    connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    with pytest.raises(BadStatement, match="this statement is not available"):
        parse(connection, text)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("INSERT INTO t VALUES (1)", "Rows are written with"),
        ("MERGE INTO t USING u ON t.i = u.i WHEN MATCHED THEN DELETE", "Rows are written with"),
        ("USE shop", "default namespace"),
        ("BEGIN", "snapshot"),
        ("PRAGMA version", "SQL only reads$"),
    ],
)
def test_a_refused_statement_is_told_what_is_there_instead(
    connection: duckdb.DuckDBPyConnection, text: str, instead: str
) -> None:
    with pytest.raises(BadStatement, match=f"SQL only reads.*{instead}|{instead}"):
        parse(connection, text)
