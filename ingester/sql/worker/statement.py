"""What a statement is and which tables it names, as DuckDB's own parser says.

``json_serialize_sql`` serializes SELECT statements only (also VALUES, FROM, DESCRIBE, SHOW and
SUMMARIZE), so it decides what is read-only; the tree has a node for each table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import msgspec

from ingester.sql.wire import Names
from ingester.sql.worker.parameters import type_hints

_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*EXPLAIN(?:\s+ANALY[SZ]E)?"
    r"(?:\s*\(\s*(?:FORMAT|ANALY[SZ]E)\b[^)]*\))?(?=[\s(/-])",
    re.IGNORECASE | re.DOTALL,
)
_SYSTEM_SCHEMAS = ("information_schema", "pg_catalog")
_SYSTEM_FUNCTIONS = ("duckdb_", "pragma_")

_WRITE = ". Rows are written with Flight DoPut, the client's writer, or adbc_ingest"
_INSTEAD = {
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "COPY"), _WRITE),
    # USE is a SET.
    "SET": ". The client names the default namespace (--namespace), and AT TIME ZONE a time zone",
    "TRANSACTION": ". Each statement is a snapshot of its own",
}


class BadStatement(Exception):
    """The statement is not one that may run; the message says why."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A statement that may run.

    Attributes:
        described: SQL that has the same columns and parameters, and computes nothing when bound.
        names: the tables that it reads.
        parameters: the names of its parameters, in order; ``1``, ``2`` … where it has none.
        hints: the types of parameters; see :func:`.parameters.type_hints`.
    """

    described: str
    names: Names
    parameters: tuple[str, ...]
    hints: dict[str, str]


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Parsed:
    """Parse one statement.

    Raises:
        BadStatement: it is none or several, or changes something.
        MemoryError: it is too long for the memory.
        duckdb.Error: it is no SQL.
    """
    statements = connection.extract_statements(text)
    if len(statements) != 1:
        raise BadStatement(f"a query is one statement; this text has {len(statements)}")
    statement = statements[0]
    kind = _kind(statement)
    if kind == "MULTI":
        raise BadStatement("PIVOT needs its values here: PIVOT … ON column IN (value, …)")
    if kind not in ("SELECT", "EXPLAIN"):
        raise BadStatement(f"{kind} is not available: SQL only reads{_INSTEAD.get(kind, '')}")
    body = described = text
    if kind == "EXPLAIN":
        body = _EXPLAIN.sub("", text, count=1)
        # Without ANALYZE, which computes.
        described = f"EXPLAIN {body}"
    tree = _tree(connection, body)
    parameters = sorted(statement.named_parameters, key=_order)
    return Parsed(described, _names(tree), tuple(parameters), type_hints(_nodes(tree), body))


def _kind(statement: duckdb.Statement) -> str:
    try:
        return statement.type.name
    except ValueError:  # DuckDB's Python package has no name for CONNECT and a few others
        return "this statement"


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, name)


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    row = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchone()
    tree = msgspec.json.decode(row[0] if row else "{}")
    if tree.get("error_type") == "out of memory":
        raise MemoryError(tree["error_message"])
    if tree.get("error"):
        raise BadStatement(f"only SELECT statements can be run: {tree.get('error_message')}")
    return tree


def _names(tree: Any) -> Names:
    tables: dict[tuple[str, str], None] = {}
    everything = False
    for node in _nodes(tree):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            schema, table = node.get("schema_name", ""), node.get("table_name", "")
            # `a.b` may also be read as catalogue and table.
            tables[schema or node.get("catalog_name", ""), table] = None
            everything |= schema.lower() in _SYSTEM_SCHEMAS
            everything |= not schema and table.lower().startswith((*_SYSTEM_FUNCTIONS, "pg_"))
        elif kind == "SHOW_REF":
            if node.get("show_type") == "SHOW_SPECIAL":
                everything = True
            elif name := node.get("table_name"):
                tables[node.get("schema_name", ""), name] = None
        elif kind == "FUNCTION":
            name = str(node.get("function_name", "")).lower()
            everything |= name.startswith(_SYSTEM_FUNCTIONS)
    return Names(list(tables), everything)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
