"""The types of parameters, as far as a statement tells them. DuckDB's Python API does not.

    CAST($1 AS DATE), $1::DATE        the type of the cast
    id = $1, id IN ($1), BETWEEN      the type of the column, if all tables agree on it
    LIMIT $1                          BIGINT

These are hints for drivers that bind no other type than the announced one, such as JDBC's. Values
keep the type that they arrive with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ingester.sql.worker.views import quoted

_BESIDE = {"COMPARISON": ("left", "right"), "BETWEEN": ("input", "lower", "upper")}


def parameter_schema(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    hints: Mapping[str, str],
    columns: Sequence[Mapping[str, str]],
) -> pa.Schema:
    """Return the parameters in order, with type null where it is unknown.

    Args:
        hints: as :func:`type_hints` returns them.
        columns: DuckDB's types of the columns of each table that the statement names.
    """
    types = {name: _type(hints[name], columns) for name in names if name in hints}
    known = [f"CAST(NULL AS {type_}) AS {quoted(name)}" for name, type_ in types.items() if type_]
    schema = pa.schema([])
    if known:
        query = connection.sql(f"SELECT {', '.join(known)} WHERE false")
        schema = query.to_arrow_reader().schema
    return pa.schema(
        (name, schema.field(name).type if name in schema.names else pa.null()) for name in names
    )


def type_hints(nodes: Iterator[dict[str, Any]], text: str) -> dict[str, str]:
    """Return for each parameter a type as written in SQL, or ``.`` and the name of a column.

    Args:
        nodes: all nodes of the tree that DuckDB serializes.
        text: the SQL of the tree. The tree has places in its UTF-8.
    """
    data = text.encode()
    found: dict[str, str] = {}
    for node in nodes:
        kind = str(node.get("class") or node.get("type"))  # TABLESAMPLE has an object there
        if kind == "CAST":
            start = node["type_expr"]["query_location"]
            end = start + node["type_expr"]["query_location_length"]
            # A cast tells more than a column.
            found |= dict.fromkeys(_parameters([node["child"]]), data[start:end].decode())
        elif kind == "LIMIT_MODIFIER":
            both = [each for each in (node["limit"], node["offset"]) if each]
            found |= dict.fromkeys(_parameters(both), "BIGINT")
        else:
            sides = [node[side] for side in _BESIDE.get(kind, ())]
            if node.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN"):
                sides = node["children"]
            beside = [each["column_names"][-1] for each in sides if each["class"] == "COLUMN_REF"]
            if beside:
                found = dict.fromkeys(_parameters(sides), "." + beside[0]) | found
    return found


def _parameters(nodes: Sequence[dict[str, Any]]) -> list[str]:
    return [node["identifier"] for node in nodes if node.get("class") == "PARAMETER"]


def _type(hint: str, columns: Sequence[Mapping[str, str]]) -> str | None:
    if not hint.startswith("."):
        return hint
    wanted = hint[1:].lower()
    types = {type_ for table in columns for name, type_ in table.items() if name.lower() == wanted}
    return types.pop() if len(types) == 1 else None
