"""The two that answer: a daemon, and DuckDB in this process over a copy of the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from ingester.client import Client, ClientError

# Errors of a statement, from either side.
FAILED = (duckdb.Error, ClientError)


class Engine(Protocol):
    """Runs one statement."""

    def run(self, sql: str) -> pa.Table:
        """Return the answer.

        Raises:
            One of ``FAILED``: the statement failed.
        """


class DaemonEngine:
    """A daemon; names without a namespace are in ``namespace``."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def run(self, sql: str) -> pa.Table:
        """See :class:`Engine`."""
        return self._client.sql(sql, namespace=self._namespace, timeout_s=120)


class LocalEngine:
    """DuckDB with its own copy of tables, in a catalog and schema named as the daemon's."""

    def __init__(self, namespace: str = "main", threads: int = 1) -> None:
        self._con = duckdb.connect(config={"threads": threads, "python_enable_replacements": False})
        self.namespace = namespace
        self.do("SET TimeZone = 'UTC'")
        self.do("ATTACH ':memory:' AS ingester")
        self.do(f'CREATE SCHEMA IF NOT EXISTS ingester."{namespace}"')
        self.do(f'USE ingester."{namespace}"')

    def load(self, tables: Mapping[str, pa.Table]) -> None:
        """Create or replace tables."""
        for name, rows in tables.items():
            self._con.register("incoming", rows)
            quoted = name.replace('"', '""')
            self.do(f'CREATE OR REPLACE TABLE "{self.namespace}"."{quoted}" AS FROM incoming')
            self._con.unregister("incoming")

    def run(self, sql: str) -> pa.Table:
        """See :class:`Engine`."""
        answer = self._con.sql(sql)
        if answer is None:
            raise duckdb.InvalidInputException("not a query")
        return _decoded(answer.to_arrow_table())

    def do(self, sql: str) -> list[tuple[Any, ...]]:
        """Run any statement and return its rows."""
        return self._con.execute(sql).fetchall()

    def kind_of(self, sql: str) -> str:
        """Return the statement's type, such as ``SELECT``; ``MULTI`` for several statements."""
        statements = self._con.extract_statements(sql)
        return statements[0].type.name if len(statements) == 1 else "MULTI"

    def close(self) -> None:
        """Free the tables."""
        self._con.close()


def _decoded(table: pa.Table) -> pa.Table:
    """Return a table whose ENUM columns are texts, as the daemon sends them."""
    for place, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            kind = column.type.value_type
            table = table.set_column(place, column.name, table.column(place).cast(kind))
    return table
