"""One query in the worker: parse, ask for its tables, compute, send.

Query ─▶ names ─▶ tables ─▶ views ─▶ DuckDB ─▶ batches of at most 1 MiB
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

from ingester.sql.wire import (
    Answering,
    Channel,
    ChannelClosed,
    Failure,
    Names,
    OpenScan,
    Query,
    Reason,
    TableGiven,
    TablesGiven,
    batches_of,
    decode,
    encode,
)
from ingester.sql.worker.answer_types import (
    check_types,
    check_wide,
    described_schema,
    plain,
)
from ingester.sql.worker.database import lock, use_namespace
from ingester.sql.worker.parameters import parameter_schema
from ingester.sql.worker.sources import Source
from ingester.sql.worker.statement import BadStatement, Parsed, parse
from ingester.sql.worker.views import CATALOG, create_view, quoted, source_name

ROWS = 2048
"""Rows that DuckDB hands over at a time, its own unit."""
MESSAGE_BYTES = 1 << 20
"""The size of a batch of the answer, or one row."""
_MESSAGE_ROWS = 1 << 16
_EXPECTED = (
    *(BadStatement, duckdb.Error, pa.ArrowException),
    *(OSError, ValueError, OverflowError, RuntimeError),
)
_REASONS: dict[str, Reason] = {
    "Out of Memory Error": "memory",
    "IO Error": "files",
    "HTTP Error": "files",
    "INTERNAL Error": "internal",
    "FATAL Error": "internal",
}
_UNKNOWN = re.compile(
    r"(Catalog Error: Table with name .*? does not exist)"
    r'(?: because schema |!(?:$|\nDid you mean "(?:pg_|duckdb_|sqlite_)))',
    re.DOTALL,
)
"""DuckDB knows the tables of the statement only: other schemas do not exist for it, and it suggests
tables of its own."""


class Scans:
    """The worker's side of scans. DuckDB calls it from several threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._numbers = count()
        self._ended = False

    def ask(self, names: Names) -> TablesGiven:
        """Return the tables that a statement names, as far as they exist."""
        with self._lock:
            self._channel.send(b"N", [encode(names)])
            return decode(self._reply(b"T"), type=TablesGiven)

    def tell(self, kind: bytes, *bodies: bytes | pa.Buffer) -> None:
        """Send a message that has no answer."""
        with self._lock:
            if not self._ended:
                self._channel.send(kind, bodies)

    def end(self, kind: bytes, *bodies: bytes | pa.Buffer) -> None:
        """Send how the query ended, as its last message.

        DuckDB may drop a scan later, from any thread. The daemon would take that for a scan of the
        worker's next query.
        """
        with self._lock:
            self._ended = True
            self._channel.send(kind, bodies)

    def read(
        self,
        source: int,
        schema: pa.Schema,
        columns: list[str],
        filter_: list[list[list[Any]]] | None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of a source in some of its columns."""
        number = next(self._numbers)
        asked = OpenScan(number, source, columns, filter_)
        name = encode(number)
        projected = pa.schema([schema.field(column) for column in columns])
        self.tell(b"O", encode(asked))
        try:
            while True:
                with self._lock:
                    if self._ended:
                        return
                    self._channel.send(b"R", [name])
                    kind, body = self._channel.receive()
                if kind == b"Z":
                    return
                if kind == b"X":
                    raise SourceFailed(decode(body, type=Failure).message)
                yield from batches_of(body, projected)
        finally:
            self.tell(b"C", name)

    def _reply(self, kind: bytes) -> pa.Buffer:
        got, body = self._channel.receive()
        if got == b"X":
            raise SourceFailed(decode(body, type=Failure).message)
        assert got == kind, f"{got!r} instead of {kind!r}"
        return body


class SourceFailed(RuntimeError):
    """The daemon could not open or read a table; it knows why."""


def compute(query: Query, connection: duckdb.DuckDBPyConnection, channel: Channel) -> None:
    """Run or describe a query and send everything about it, its failure included."""
    scans = Scans(channel)
    try:
        _answer(query, connection, scans)
    except ChannelClosed:
        raise
    except Exception as exc:
        scans.end(b"F", encode(_failure(exc)))


def _failure(exc: Exception) -> Failure:
    """Return what a query failed with.

    DuckDB's errors begin with their kind. They are OSError once the first rows are computed: then
    they come through an Arrow stream.
    """
    message = str(exc).partition("\n\nStack Trace")[0]  # of addresses without names
    if "No space left on device" in message:
        return Failure("memory", message)
    if isinstance(exc, MemoryError):
        return Failure("memory", message or "the process has no more")
    if isinstance(exc, RecursionError):
        return Failure("invalid", "the statement is nested too deeply")
    for beginning, reason in _REASONS.items():
        if message.startswith(beginning):
            return Failure(reason, message)
    if (unknown := _UNKNOWN.match(message)) is not None:
        return Failure("invalid", f"{unknown[1]}: SHOW ALL TABLES lists those that can be read")
    if not isinstance(exc, _EXPECTED):
        return Failure("internal", f"{type(exc).__name__}: {message}")
    return Failure("invalid", message)


def _answer(query: Query, connection: duckdb.DuckDBPyConnection, scans: Scans) -> None:
    parsed = parse(connection, query.text)
    given = scans.ask(_resolved(parsed.names, query.namespace))
    lock(connection, [path for one in given.tables for file in one.files for path in file.paths])
    known: dict[pa.DataType, str] = {}
    columns = [_create(connection, scans, table, known) for table in given.tables]
    if query.namespace:
        use_namespace(connection, query.namespace)
    values = _values(parsed, query)
    if query.describe:
        relation = _bound(
            connection, parsed.described, _nulls(parsed) if values is None else values
        )
        parameters = parameter_schema(connection, parsed.parameters, parsed.hints, columns)
        scans.tell(b"S", encode(_answering(described_schema(connection, relation), parameters)))
    else:
        _send_rows(connection, scans, query, values)
    scans.end(b"E")


def _resolved(names: Names, namespace: str | None) -> Names:
    """Return the names with the default namespace where they have none."""
    tables = [(own or namespace or "", table) for own, table in names.tables]
    return Names(list(dict.fromkeys(tables)), names.everything)


def _create(
    connection: duckdb.DuckDBPyConnection,
    scans: Scans,
    table: TableGiven,
    known: dict[pa.DataType, str],
) -> dict[str, str]:
    """Create the view of a table, and return DuckDB's types of its columns."""
    schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(CATALOG)}.{quoted(table.namespace)}")
    types = _types(connection, schema, known)
    for source in (*table.rows, *table.copies, *table.changes):
        own = schema
        if source in table.changes:
            fields = [field.with_nullable(True) for field in schema]
            own = pa.schema([*fields, pa.field("_op", pa.string(), nullable=False)])

        def open_scan(
            columns: list[str],
            filter_: list[list[list[Any]]] | None,
            source: int = source,
            own: pa.Schema = own,
        ) -> Iterator[pa.RecordBatch]:
            return scans.read(source, own, columns, filter_)

        # The daemon filters no changes, because a filter could hide a deletion, and no copies.
        filters = source in table.rows
        connection.register(source_name(source), Source(own, open_scan, filters=filters))
    connection.execute(create_view(table, types))
    return types


def _types(
    connection: duckdb.DuckDBPyConnection, schema: pa.Schema, known: dict[pa.DataType, str]
) -> dict[str, str]:
    """Return DuckDB's types of the columns; ``known`` keeps them for other tables."""
    if new := list(set(schema.types) - known.keys()):
        one_each = pa.schema((str(place), type_) for place, type_ in enumerate(new))
        relation = connection.from_arrow(one_each.empty_table())
        known.update(zip(new, map(str, relation.types), strict=True))
    return {field.name: known[field.type] for field in schema}


def _values(parsed: Parsed, query: Query) -> list[Any] | dict[str, Any] | None:
    """Return the values of the parameters as DuckDB takes them; None if none are given."""
    names = parsed.parameters
    if query.parameters is None and query.describe:
        return None
    row = pa.table({})
    if query.parameters is not None:
        with pa.ipc.open_stream(query.parameters) as reader:
            row = reader.read_all()
    if len(names) != row.num_columns:
        raise BadStatement(
            f"parameters: {len(names)} values are needed, {row.num_columns} are given"
        )
    if not names:
        return None
    values = [_value(row.column(place)) for place in range(row.num_columns)]
    given = dict(zip(row.schema.names, values, strict=True))
    if all(name.isdigit() for name in names):
        # Columns with the announced names may be in any order; others are taken in theirs.
        return [given[name] for name in names] if given.keys() == set(names) else values
    if missing := [name for name in names if name not in given]:
        raise BadStatement(f"parameter ${missing[0]} has no value")
    return given


def _nulls(parsed: Parsed) -> list[None] | dict[str, None]:
    """Return values for parameters that have none yet."""
    if all(name.isdigit() for name in parsed.parameters):
        return [None] * len(parsed.parameters)
    return dict.fromkeys(parsed.parameters)


def _value(column: pa.ChunkedArray) -> Any:
    type_ = column.type
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        # DuckDB would cut a value of Python to microseconds; this raises for others.
        column = column.cast(pa.timestamp("us", type_.tz))
    return column[0].as_py()


def _bound(
    connection: duckdb.DuckDBPyConnection, text: str, values: Any
) -> duckdb.DuckDBPyRelation:
    """Return the statement, not computed yet."""
    return connection.sql(text, params=values) if values else connection.sql(text)


def _answering(schema: pa.Schema, parameters: pa.Schema) -> Answering:
    both = (plain(each).serialize().to_pybytes() for each in (schema, parameters))
    return Answering(*both)


def _send_rows(
    connection: duckdb.DuckDBPyConnection, scans: Scans, query: Query, values: Any
) -> None:
    relation = _bound(connection, query.text, values)
    # Before the first row is computed: a Flight client can cancel once it has the schema.
    described = described_schema(connection, relation)
    scans.tell(b"S", encode(_answering(described, pa.schema([]))))
    schema = plain(described)
    check_types(relation)
    reader = relation.to_arrow_reader(ROWS)
    waiting: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in _first_rows(reader, query.first_rows):
        if not batch.num_rows:
            continue
        check_wide(relation, batch)
        waiting.append(batch if batch.schema.equals(schema) else batch.cast(schema))
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        if nbytes >= MESSAGE_BYTES or rows >= _MESSAGE_ROWS:
            _send(scans, waiting, nbytes)
            waiting, rows, nbytes = [], 0, 0
    if waiting:
        _send(scans, waiting, nbytes)


def _first_rows(reader: pa.RecordBatchReader, most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches up to a number of rows."""
    for batch in reader:
        yield batch if most is None else batch.slice(0, most)
        if most is not None:
            most -= batch.num_rows
            if most <= 0:
                return


def _send(scans: Scans, batches: list[pa.RecordBatch], nbytes: int) -> None:
    """Send batches as one, or in pieces of at most 1 MiB or one row."""
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    step = max(1, batch.num_rows * MESSAGE_BYTES // max(nbytes, MESSAGE_BYTES))
    for start in range(0, batch.num_rows, step):
        scans.tell(b"D", batch.slice(start, step).serialize())
