"""Answers of SQL statements, printed or written to a file."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ingester.client import Client, SqlStream
from ingester.shown_text import shown_names

from .exits import CommandFailed
from .output.formats import BINARY
from .output.sql_types import as_table_types
from .printing import print_line, say
from .query import write_answer

PLAN = ["explain_key", "explain_value"]
"""The columns of EXPLAIN."""
MORE = "another --format prints all"


class SqlArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The statements, as given on the command line, and where their answers go."""

    statement: str | None
    file: Path | None
    namespace: str | None
    parameters: dict[str, Any]
    format: str | None
    output: Path | None
    allow_missing: bool = False


def print_answer(client: Client, statement: str, asked: SqlArguments, kind: str) -> int:
    """Print the answer of one statement, or write it to ``asked.output``; the number of rows."""
    with client.sql_stream(
        statement,
        asked.parameters,
        namespace=asked.namespace,
        missing="allow" if asked.allow_missing else "error",
    ) as stream:
        if stream.missing:
            say(f"rows that only these daemons hold are missing: {', '.join(stream.missing)}")
        if kind == "table" and stream.schema.names == PLAN:
            return _print_plan(stream)
        if kind not in BINARY:
            schema = _text_schema(stream.schema, kind)
            batches = map(as_table_types, stream)
            return write_answer(schema, batches, kind, asked.output, more=MORE)
        try:
            return write_answer(stream.schema, stream, kind, asked.output)
        except pa.ArrowNotImplementedError as exc:
            raise CommandFailed(f"{exc}: cast the column, or use another format") from exc


def _print_plan(stream: SqlStream) -> int:
    rows = [row for batch in stream for row in batch.to_pylist()]
    for line in "\n".join(str(row["explain_value"]) for row in rows).splitlines():
        print_line(line)
    return len(rows)


def _text_schema(schema: pa.Schema, kind: str) -> pa.Schema:
    names = Counter(schema.names)
    if kind == "jsonl" and (twice := [name for name, count in names.items() if count > 1]):
        raise CommandFailed(
            f"two columns have the name {shown_names(twice)}, which a JSON object cannot have:"
            " rename one with AS"
        )
    columns = [pa.nulls(0, field.type) for field in schema]
    return as_table_types(pa.RecordBatch.from_arrays(columns, schema.names)).schema
