"""Statements: described, prepared, with bound parameters, run and cancelled.

    CommandStatementQuery            ─▶ GetFlightInfo ─▶ a ticket ─▶ DoGet
    CreatePreparedStatement          ─▶ a handle
    CommandPreparedStatementQuery    ─▶ DoPut of one row of parameters ─▶ another handle
                                     ─▶ GetFlightInfo ─▶ a ticket ─▶ DoGet

A ticket names the announced schema. If a table has changed since, DoGet is refused and the client
may ask again.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import BadRequest, NotAvailable, Refused
from ingester.protobuf import bytes_field, varint_field
from ingester.server.flight.callers import permitted
from ingester.server.flight.put_messages import batch_of, next_chunk, send_answer
from ingester.server.flight.sql import SqlCall, answer_statement, sql_caller
from ingester.server.flight_sql.messages import (
    MAX_MESSAGE_BYTES,
    Handle,
    Message,
    handle_of,
    packed,
    prepared_result,
    schema_digest,
    statement_request,
    tickets_of,
    unpacked,
)
from ingester.server.flight_sql.sessions import default_namespace
from ingester.server.flight_sql.type_info import described
from ingester.server.services import Services
from ingester.sql.engine import Described
from ingester.sql.request import Statement, checked

_CANCELLED, _NOT_CANCELLABLE = 1, 3


class Statements:
    """The statements of Flight SQL clients. Keeps nothing between calls; any thread."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def info(
        self, call: SqlCall, command: Message, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        """Return schema and ticket of a statement."""
        handle = self._handle(call, command)
        schema = self._describe(call, handle.statement).schema
        named = replace(handle, query_id=new_query_id(call), digest=schema_digest(schema))
        ticket = packed("TicketStatementQuery", bytes_field(1, named.encoded()))
        told = {"query_id": named.query_id, "store": self._services.store_id}
        schema = described(schema).with_metadata(told)
        return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])])

    def schema(self, call: SqlCall, command: Message) -> pa.Schema:
        """Return the schema of a statement's answer."""
        return described(self._describe(call, self._handle(call, command).statement).schema)

    def get(self, call: SqlCall, ticket: Message) -> fl.FlightDataStream:
        """Run a statement.

        Raises:
            Refused: a table has changed since GetFlightInfo, so that the schema is another.
        """
        handle = handle_of(ticket.blob(1))

        def announced(schema: pa.Schema) -> pa.Schema:
            if handle.digest and handle.digest != schema_digest(schema):
                raise Refused(
                    "the columns of the answer have changed since GetFlightInfo: run the statement"
                    " again",
                    retry_after_s=0.0,
                )
            return described(schema)

        # The id of a ticket that another caller was given is not used: it may be running.
        query_id = handle.query_id if is_query_of(call, handle.query_id) else new_query_id(call)
        return answer_statement(
            call.context, self._services, call.permit, handle.statement, query_id, announced
        )

    def prepare(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Return the handle of a statement, the schemas of its answer and its parameters."""
        statement = self._statement(call, unpacked(body))
        found = self._describe(call, statement)
        parameters = _bindable(found.parameters)
        return [prepared_result(Handle(statement), described(found.schema), parameters)]

    def close(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Check the handle; there is nothing to close."""
        handle_of(unpacked(body).blob(1))
        return []

    def cancel(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Answer CancelFlightInfo: end the query of a FlightInfo.

        The query ends only for the caller that has started it, and for callers that may read
        everything. For others it is like one that has ended.
        """
        return [varint_field(1, self._cancel(call, Message("CancelFlightInfo", body).blob(1)))]

    def cancel_query(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Answer CancelQuery, the older form of CancelFlightInfo."""
        status = self._cancel(call, unpacked(body).blob(1))
        return [packed("ActionCancelQueryResult", varint_field(1, status))]

    def _cancel(self, call: SqlCall, info: bytes) -> int:
        reads_everything = call.permit.sees("action CancelFlightInfo") is None
        ended = False
        for ticket in tickets_of(info):
            query_id = handle_of(unpacked(ticket).blob(1)).query_id
            if reads_everything or is_query_of(call, query_id):
                ended |= self._services.sql.cancel(query_id)
        return _CANCELLED if ended else _NOT_CANCELLABLE

    def bind(self, call: SqlCall, command: Message, reader: Any, writer: Any) -> None:
        """Read one row of parameters, and answer with a handle that has it."""
        handle = handle_of(command.blob(1))
        with permitted(self._services, call.permit, reader, writer) as (messages, answers):
            row: pa.RecordBatch | None = None
            while (chunk := next_chunk(messages, MAX_MESSAGE_BYTES)) is not None:
                batch = batch_of(chunk)
                if batch.num_rows == 0:
                    continue
                if row is not None:
                    raise BadRequest("the parameters have several rows; a query takes exactly one")
                row = batch
            bound = checked(replace(handle.statement, parameters=row))
            encoded = Handle(bound).encoded()
            if len(encoded) > MAX_MESSAGE_BYTES // 2:
                raise BadRequest(
                    f"statement and parameters have {len(encoded)} B; at most"
                    f" {MAX_MESSAGE_BYTES // 2} are taken"
                )
            send_answer(answers, bytes_field(1, encoded))

    def _handle(self, call: SqlCall, command: Message) -> Handle:
        if command.name == "CommandPreparedStatementQuery":
            return handle_of(command.blob(1))
        return Handle(self._statement(call, command))

    def _statement(self, call: SqlCall, message: Message) -> Statement:
        request = statement_request(message)
        if request.in_transaction:
            raise NotAvailable("Flight SQL: transactions are not supported")
        return checked(Statement(request.text, default_namespace(call.context)))

    def _describe(self, call: SqlCall, statement: Statement) -> Described:
        caller = sql_caller(call.context, self._services.access, call.permit)
        return self._services.sql.describe(statement, caller)


def _bindable(parameters: pa.Schema) -> pa.Schema:
    """Return the parameters with types that the JDBC driver binds right; others bind their own.

    It binds nothing to null: unknown types are texts, which the engine converts like literals. It
    writes milliseconds, whatever the unit is.
    """
    types = []
    for kind in parameters.types:
        if pa.types.is_null(kind):
            kind = pa.string()
        elif pa.types.is_timestamp(kind):
            kind = pa.timestamp("ms", kind.tz)
        elif pa.types.is_time(kind):
            kind = pa.time32("ms")
        types.append(kind)
    return pa.schema(list(zip(parameters.names, types, strict=True)))


def new_query_id(call: SqlCall) -> str:
    """Return a new id, which tells whose query it is."""
    return f"{_tag(call)}-{uuid.uuid4().hex}"


def is_query_of(call: SqlCall, query_id: str) -> bool:
    """Return whether :func:`new_query_id` has made this id for the same caller."""
    return query_id.startswith(f"{_tag(call)}-")


def _tag(call: SqlCall) -> str:
    return hashlib.blake2b(call.permit.caller.name.encode(), digest_size=6).hexdigest()
