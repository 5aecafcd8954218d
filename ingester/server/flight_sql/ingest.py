"""``CommandStatementIngest``: rows in bulk, as ``adbc_ingest`` and Go's ``ExecuteIngest`` send.

    client ─▶ batches ─▶ pieces ─▶ PutCall, the way of every write ─▶ answers, counted
                           ▲                                             │
                           └── those without an answer, if there was no room
    at the end: one DoPutUpdateResult with the number of rows, then the refusal if there was one

Such a client reads no answer before its last batch, and never sends a batch twice. So a batch that
is too large is divided, and a piece that finds no room waits here, while gRPC's flow control stops
the client. Each piece is atomic, the stream is not: after a refusal, the rows counted in the answer
stay (tests/server/flight_sql/test_ingest).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from ingester.errors import (
    BadRequest,
    ClientGone,
    DiskFull,
    IngesterError,
    LimitReached,
    MemoryFull,
    NotAvailable,
    OverQuota,
    Saturated,
    UnknownTable,
)
from ingester.protobuf import varint_field
from ingester.schema.expansion import expands, shown_bytes
from ingester.schema.pieces import pieces
from ingester.server.flight.callers import permitted, trace_of
from ingester.server.flight.put import PutCall
from ingester.server.flight.put_messages import (
    PutLimits,
    batch_of,
    bytes_of,
    next_chunk,
    schema_of,
    send_answer,
)
from ingester.server.flight.refusals import known_error
from ingester.server.flight.requests import WriteCommand
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql.messages import Message
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.shown_text import shown_name
from ingester.write.operation_maker import OperationMaker
from persist.table import TableKey

CATALOG = "ingester"
PATIENCE_S = 60.0
"""How long the oldest unanswered piece waits for room before it is refused."""
LOOK_S = 0.5
"""A waiting call checks this often whether its client is still connected."""
GROWS = 16
"""Only batches of this part of the limit are examined for what dictionaries and views grow to."""
_ROOM = (MemoryFull, Saturated, DiskFull, OverQuota, LimitReached)
"""Refusals that pass when there is room."""
# TableNotExistOption and TableExistsOption
_CREATE, _FAIL_IF_MISSING = 1, 2
_FAIL_IF_EXISTS, _APPEND, _REPLACE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class IngestCommand:
    """A ``CommandStatementIngest``, as far as it is supported."""

    table: TableKey
    creates: bool
    """Whether a missing table is created."""
    appends: bool
    """Whether the table may exist already."""


def parse_ingest(message: Message, default_namespace: str | None = None) -> IngestCommand:
    """Parse the message.

    Raises:
        BadRequest: malformed, or without a namespace.
        NotAvailable: an option that is not supported.
    """
    name, namespace, catalog = message.text(2), message.text(3), message.text(4)
    if catalog not in ("", CATALOG):
        raise BadRequest(
            f"ingest: catalog {shown_name(catalog)} does not exist; the only one is {CATALOG!r}"
        )
    if message.number(5):
        raise NotAvailable("ingest: temporary tables are not supported")
    if message.blob(6):
        raise NotAvailable("ingest: transactions are not supported: use autocommit")
    for entry in message.blobs(1000):
        option = shown_name(Message("option", entry).text(1))
        raise NotAvailable(f"ingest: option {option} is not supported")
    if not (namespace := namespace or default_namespace or ""):
        raise BadRequest(
            f"ingest: table {shown_name(name)} has no namespace: give it as db_schema_name of"
            " adbc_ingest, as DBSchema in Go, or as 'namespace.table' in Polars"
        )
    options = Message("TableDefinitionOptions", message.blob(1))
    if_missing, if_exists = options.number(1), options.number(2)
    if if_exists == _REPLACE:
        raise NotAvailable(
            f"ingest: table {shown_name(name)} cannot be replaced by an ingest: append to it, or"
            " replace it atomically by a push ('ingester push'; docs/pushes.md)"
        )
    if if_missing not in (_CREATE, _FAIL_IF_MISSING) or if_exists not in (_FAIL_IF_EXISTS, _APPEND):
        raise BadRequest(
            f"ingest: table_definition_options: if_not_exist is {if_missing} and if_exists"
            f" {if_exists}, but must be 1 or 2"
        )
    return IngestCommand((namespace, name), if_missing == _CREATE, if_exists == _APPEND)


class Ingests:
    """Serves bulk ingests. Any thread."""

    def __init__(self, portal: Portal, services: Services, limits: PutLimits) -> None:
        self._portal = portal
        self._services = services
        self._limits = limits
        self._operations = OperationMaker(limits.max_batch_bytes)

    def serve(self, call: SqlCall, command: IngestCommand, reader: Any, writer: Any) -> None:
        """Write the rows of a DoPut call, and send their number. Inside :func:`refusals`."""
        permit = call.permit
        permit.require("put write", *command.table)
        permit.done("put write", *command.table, None)
        # Nothing but the count is sent: Go takes the first message for it.
        with permitted(self._services, permit, reader, _Unsent()) as (allowed, _):
            self._check_exists(command)
            schema = schema_of(allowed, self._limits.shapes)
            rows = _Rows(schema, self._pieces(schema, allowed))
            try:
                self._write(call, command.table, rows)
            except ClientGone:
                raise
            except Exception as exc:
                send_answer(writer, varint_field(1, rows.written))
                raise _counted(exc, rows.written) from exc
        send_answer(writer, varint_field(1, rows.written))

    def _check_exists(self, command: IngestCommand) -> None:
        """Check that the table exists, or does not. Another write may still create it."""
        name = "/".join(command.table)
        try:
            self._portal.call(self._services.catalog.open, *command.table)
        except UnknownTable as exc:
            if not command.creates:
                raise UnknownTable(
                    f"table {name} does not exist: mode='create_append' of adbc_ingest creates it"
                ) from exc
            return
        if not command.appends:
            raise BadRequest(f"table {name} exists: mode='append' of adbc_ingest adds rows")

    def _write(self, call: SqlCall, table: TableKey, rows: _Rows) -> None:
        """Write all rows; if there is no room, wait, and go on with the first unanswered batch."""
        services, command = self._services, WriteCommand("write", *table)
        trace = trace_of(call.context, services.traces)
        answers, until = -1, 0.0
        while True:
            traces = None if trace is None else trace.stream("write", *table)
            put = PutCall(self._portal, services.writes, command, self._limits, traces)
            try:
                put.serve(rows, rows)
                return
            except _ROOM as exc:
                if rows.has_failed:
                    raise
                if rows.answers != answers:
                    answers, until = rows.answers, time.monotonic() + PATIENCE_S
                _wait(call, exc, until)
            finally:
                if put.refused_bytes:
                    self._portal.post(services.freed, put.refused_bytes)
            rows.repeat_unanswered()

    def _pieces(self, schema: pa.Schema, reader: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a stream, in batches that may be written; one without rows if none."""
        most = self._limits.max_batch_bytes
        is_empty = True
        while (chunk := next_chunk(reader, most)) is not None:
            is_empty = False
            yield from self._divided(batch_of(chunk), bytes_of(chunk))
        if is_empty:  # a table of no rows is created
            columns = [pa.nulls(0, kind) for kind in schema.types]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _divided(self, batch: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
        most = self._operations.max_batch_bytes
        if nbytes <= most and (nbytes * GROWS <= most or not any(map(expands, batch.schema.types))):
            yield batch
            return
        batch.validate()
        if sum(map(shown_bytes, batch.columns)) > GROWS * nbytes:
            yield batch  # refused where it is converted
            return
        self._operations.check_valid(batch)
        yield from pieces(batch, most // 2 if nbytes > most else most)


def _wait(call: SqlCall, refusal: IngesterError, until: float) -> None:
    """Wait as long as the refusal says; raise it if that is beyond ``until``."""
    at = time.monotonic() + (refusal.retry_after_s or LOOK_S)
    if at > until:
        raise refusal
    while (left := at - time.monotonic()) > 0:
        if call.context.is_cancelled():
            raise ClientGone("the call was ended before its answer")
        call.permit.renew()
        time.sleep(min(left, LOOK_S))


def _counted(error: Exception, written: int) -> IngesterError:
    """Return the error with the number of rows that stay."""
    known = known_error(error)
    details = {**known.details, "rows_written": written}
    details.pop("answered", None)
    said = f"{written} rows before them are written and stay" if written else "no row is written"
    return type(known)(
        f"{known.message} ({said})", retry_after_s=known.retry_after_s, details=details
    )


class _Unsent:
    """A writer that sends nothing."""

    def write(self, answer: pa.Buffer) -> None:
        """Drop an answer."""


class _Piece(NamedTuple):
    """A message of the stream: rows that are one write."""

    data: pa.RecordBatch
    app_metadata: None = None


class _Rows:
    """Reader and writer of a :class:`PutCall`: gives it pieces, and takes its answers.

    One thread reads and one writes.
    """

    def __init__(self, schema: pa.Schema, pieces: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._pieces = pieces
        self._repeated = deque[pa.RecordBatch]()
        self._unanswered = deque[pa.RecordBatch]()
        self.written = 0
        """Rows that are durable and readable."""
        self.answers = 0
        self.has_failed = False
        """Whether the stream broke off; it has no further pieces."""

    def read_chunk(self) -> _Piece:
        """Return the next piece. Raises StopIteration at the end."""
        try:
            piece = self._repeated.popleft() if self._repeated else next(self._pieces)
        except StopIteration:
            raise
        except BaseException:
            self.has_failed = True
            raise
        self._unanswered.append(piece)
        return _Piece(piece)

    def write(self, answer: pa.Buffer) -> None:
        """Count the rows of the oldest unanswered piece; an empty answer says nothing."""
        if answer.size:
            self.written += self._unanswered.popleft().num_rows
            self.answers += 1

    def repeat_unanswered(self) -> None:
        """Read the unanswered pieces again. No thread reads or writes."""
        self._repeated.extendleft(reversed(self._unanswered))
        self._unanswered.clear()
