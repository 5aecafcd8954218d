"""``query``: rows of one snapshot, printed or written to a file."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa

from ingester.client import InvalidRequest
from ingester.client.filter_parser import Disjunction, parse_filter

from .connecting import connect
from .exits import USAGE, CommandFailed
from .output.formats import TABLE_ROWS, BatchSink, TableSink, appearing, format_of, open_sink
from .printing import print_line, say


class QueryArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The query, as given on the command line."""

    namespace: str
    table: str
    columns: str | None
    filter: str | None
    limit: int | None
    version: int | None
    allow_missing: bool = False


def run_query(
    endpoint: str, asked: QueryArguments, format_: str | None, output: Path | None
) -> None:
    """Print the answer in the format, or write it to ``output``, completely or not at all.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: The daemon refused.
    """
    kind = format_of(format_, output)
    columns, filter_ = asked_columns(asked.columns), asked_filter(asked.filter)
    with (
        connect(endpoint) as client,
        client.query_stream(
            asked.namespace,
            asked.table,
            columns,
            filter_,
            asked.limit,
            version=asked.version,
            missing="allow" if asked.allow_missing else "error",
        ) as stream,
    ):
        if gone := stream.snapshot.missing:
            say(f"rows that only these daemons hold are missing: {', '.join(gone)}")
        batches = (batch for batch, _ in stream)
        write_answer(stream.schema, batches, kind, output, asked.limit)


def write_answer(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    kind: str,
    output: Path | None,
    limit: int | None = None,
    more: str = "--limit N or another --format shows more",
) -> int:
    """Print batches in a format, or write them to ``output``; the number of rows.

    Args:
        limit: The most rows that a table shows.
        more: How to see rows beyond :data:`TABLE_ROWS`.
    """
    if output is not None:
        with appearing(output) as file:
            rows = _copy(batches, open_sink(kind, file, schema, seekable=True))
        print_line(f"wrote {rows:,} rows to {output}", sys.stderr)
        return rows
    if kind == "table":
        return _print_table(schema, batches, limit, more)
    to, shown = sys.stdout.buffer, sys.stdout.isatty()
    rows = _copy(batches, open_sink(kind, to, schema, seekable=False, terminal=shown))
    sys.stdout.buffer.flush()
    return rows


def asked_columns(text: str | None) -> list[str] | None:
    """The names in a comma-separated list; a name with a comma is quoted as in CSV.

    Raises:
        CommandFailed: A name is empty, or its quotes are not closed.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if '"' in text:
        try:
            names = next(csv.reader([text], strict=True, skipinitialspace=True))
        except csv.Error as exc:
            raise CommandFailed(f"--columns {text!r}: {exc}", USAGE) from exc
    if not all(names):
        raise CommandFailed(f"--columns {text!r} has an empty name", USAGE)
    return names


def asked_filter(text: str | None) -> Disjunction | None:
    """The parsed filter. Raises CommandFailed if it is invalid."""
    if text is None:
        return None
    try:
        return parse_filter(text)
    except InvalidRequest as exc:
        raise CommandFailed(str(exc), USAGE) from exc


def _copy(batches: Iterable[pa.RecordBatch], sink: BatchSink) -> int:
    rows = 0
    try:
        for batch in batches:
            sink.write(batch)
            rows += int(batch.num_rows)
    except BaseException:
        sink.abandon()
        raise
    sink.finish()
    return rows


def _print_table(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int | None, more: str
) -> int:
    sink = TableSink(schema, TABLE_ROWS if limit is None else limit)
    for batch in batches:
        sink.write(batch)
        if sink.more:
            break
    sink.finish()
    if sink.more:
        print_line(f"(the first {TABLE_ROWS:,} rows; {more})", sys.stderr)
    return sink.rows
