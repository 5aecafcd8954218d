"""``CommandStatementIngest``: rows in bulk, as ``adbc_ingest`` and Go's ``ExecuteIngest`` send.

    client ─▶ batches ─▶ pieces ─▶ PutCall, the way of every write ─▶ answers, counted
                           ▲                                             │
                           └── those without an answer, if there was no room
    at the end: one DoPutUpdateResult with the number of rows, then the refusal if there was one

Such a client reads no answer before its last batch, and never sends a batch twice. So a batch that
is too large is divided, and a batch that finds no room waits here, while gRPC's flow control stops
the client. Each piece is atomic, the stream is not: after a refusal, the rows counted in the answer
stay (tests/server/flight_sql/test_ingest).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
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
from ingester.server.flight.put_messages import PutLimits, batch_of, bytes_of, send_answer
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
"""How long the oldest batch without an answer waits for room before it is refused."""
LOOK_S = 0.5
"""A waiting call checks this often whether its client is still connected."""
GROWS = 16
"""Only batches of this part of the limit are examined for what dictionaries and views grow to."""
_ROOM = (MemoryFull, Saturated, DiskFull, OverQuota, LimitReached)
"""Refusals that pass when there is room."""
_IF_NOT_EXIST = {1: True, 2: False}
"""``TableNotExistOption``: whether the table is created."""
_IF_EXISTS = {1: False, 2: True}
"""``TableExistsOption``: whether rows are appended."""
_REPLACE = 3


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
    if options.number(2) == _REPLACE:
        raise NotAvailable(
            f"ingest: table {shown_name(name)} cannot be replaced by an ingest: append to it, or"
            " replace it atomically by a push ('ingester push'; docs/pushes.md)"
        )
    return IngestCommand(
        (namespace, name),
        _chosen(options.number(1), "if_not_exist", _IF_NOT_EXIST),
        _chosen(options.number(2), "if_exists", _IF_EXISTS),
    )


def _chosen(value: int, name: str, known: dict[int, bool]) -> bool:
    if value not in known:
        said = f"has the unknown value {value}" if value else "is missing"
        raise BadRequest(f"ingest: table_definition_options.{name} {said}")
    return known[value]


class Ingests:
    """Serves bulk ingests. Any thread."""

    def __init__(self, portal: Portal, services: Services, limits: PutLimits) -> None:
        self._portal = portal
        self._services = services
        self._limits = limits
        self._lock = threading.Lock()
        self._creating = set[TableKey]()

    def serve(self, call: SqlCall, command: IngestCommand, reader: Any, writer: Any) -> None:
        """Write the rows of a DoPut call, and send their number. Inside :func:`refusals`."""
        permit = call.permit
        permit.require("put write", *command.table)
        permit.done("put write", *command.table, None)
        # Nothing but the count is sent: Go takes the first message for it.
        with permitted(self._services, permit, reader, _Unsent()) as (allowed, _):
            rows = _Rows(allowed, OperationMaker(self._limits.max_batch_bytes))
            with self._claimed(command):
                try:
                    self._write(call, command.table, rows)
                except ClientGone:
                    raise
                except Exception as exc:
                    send_answer(writer, varint_field(1, rows.written))
                    raise _counted(exc, rows.written) from exc
        send_answer(writer, varint_field(1, rows.written))

    @contextmanager
    def _claimed(self, command: IngestCommand) -> Iterator[None]:
        """Check that the table exists, or does not, and let no other call create it meanwhile.

        Another daemon, or a write that is no ingest, may still create it.
        """
        if command.creates and command.appends:
            yield
            return
        table, creates = command.table, command.creates
        with self._lock:
            claimed = creates and table not in self._creating
            if claimed:
                self._creating.add(table)
        try:
            exists = self._exists(table) or (creates and not claimed)
            if exists and not command.appends:
                raise BadRequest(
                    f"table {table[0]}/{table[1]} exists: mode='append' of adbc_ingest adds rows"
                )
            if not exists and not creates:
                raise UnknownTable(
                    f"table {table[0]}/{table[1]} does not exist: mode='create_append' of"
                    " adbc_ingest creates it"
                )
            yield
        finally:
            if claimed:
                with self._lock:
                    self._creating.remove(table)

    def _exists(self, table: TableKey) -> bool:
        try:
            self._portal.call(self._services.catalog.open, *table)
        except UnknownTable:
            return False
        return True

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
                if not rows.can_be_repeated:
                    raise
                if rows.answers != answers:
                    answers, until = rows.answers, time.monotonic() + PATIENCE_S
                _wait(call, exc, until)
            finally:
                if put.refused_bytes:
                    self._portal.post(services.freed, put.refused_bytes)
            rows.repeat_unanswered()


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
    app_metadata: Any = None


class _Rows:
    """Reader and writer of a :class:`PutCall`: gives it the pieces of a stream, takes its answers.

    One thread reads and one writes.
    """

    def __init__(self, reader: Any, operations: OperationMaker) -> None:
        self._reader = reader
        self._operations = operations
        self._pieces: Iterator[_Piece] = iter(())
        self._repeated = deque[_Piece]()
        self._unanswered = deque[_Piece]()
        self._is_empty = True
        self._has_ended = False
        self.written = 0
        """Rows that are durable and readable."""
        self.answers = 0
        self.can_be_repeated = True
        """Whether no message was lost: one that was not decoded or divided does not come again."""

    @property
    def schema(self) -> pa.Schema:
        """The schema that the client sent."""
        return self._reader.schema

    def read_chunk(self) -> _Piece:
        """Return the next piece. Raises StopIteration at the end."""
        try:
            piece = self._next()
        except StopIteration:
            raise
        except BaseException:
            self.can_be_repeated = False
            raise
        self._is_empty = False
        self._unanswered.append(piece)
        return piece

    def write(self, answer: pa.Buffer) -> None:
        """Count the rows of the oldest unanswered piece; an empty answer says nothing."""
        if answer.size:
            self.written += self._unanswered.popleft().data.num_rows
            self.answers += 1

    def repeat_unanswered(self) -> None:
        """Read the unanswered pieces again. No thread reads or writes."""
        self._repeated.extendleft(reversed(self._unanswered))
        self._unanswered.clear()

    def _next(self) -> _Piece:
        if self._repeated:
            return self._repeated.popleft()
        while not self._has_ended:
            if (piece := next(self._pieces, None)) is not None:
                return piece
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                self._has_ended = True
                break
            self._pieces = self._divided(chunk)
        if not self._is_empty:
            raise StopIteration
        # A table of no rows is created by a batch of no rows.
        columns = [pa.nulls(0, kind) for kind in self.schema.types]
        return _Piece(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def _divided(self, chunk: Any) -> Iterator[_Piece]:
        batch, most = batch_of(chunk), self._operations.max_batch_bytes
        nbytes = bytes_of(chunk)
        if nbytes <= most and (nbytes * GROWS <= most or not any(map(expands, batch.schema.types))):
            yield _Piece(batch, chunk.app_metadata)
            return
        batch.validate()
        if sum(map(shown_bytes, batch.columns)) > GROWS * nbytes:
            yield _Piece(batch, chunk.app_metadata)  # refused where it is converted
            return
        self._operations.check_valid(batch)
        for piece in pieces(batch, most // 2 if nbytes > most else most):
            yield _Piece(piece)
