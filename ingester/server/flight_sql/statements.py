"""Statements: described, prepared, with bound parameters, run and cancelled.

CommandStatementQuery            ─▶ GetFlightInfo ─▶ a ticket ─▶ DoGet
CreatePreparedStatement          ─▶ a handle
CommandPreparedStatementQuery    ─▶ DoPut of one row of parameters ─▶ another handle
                                 ─▶ GetFlightInfo ─▶ a ticket ─▶ DoGet

"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import BadRequest, NotAvailable
from ingester.protobuf import bytes_field, varint_field
from ingester.server.flight.callers import default_namespace, permitted
from ingester.server.flight.put_messages import batch_of, next_chunk, send_answer
from ingester.server.flight.sql import SqlCall, answer_statement, sql_caller
from ingester.server.flight_sql.messages import (
    MAX_MESSAGE_BYTES,
    Message,
    encoded_handle,
    handle_of,
    packed,
    prepared_result,
    tickets_of,
    unpacked,
)
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
        statement = self._statement(call, command)
        schema = described(self._describe(call, statement).schema)
        # An id that nobody guesses: who has the ticket may cancel its query.
        query_id = uuid.uuid4().hex
        handle = bytes_field(1, encoded_handle(statement, query_id))
        ticket = fl.FlightEndpoint(packed("TicketStatementQuery", handle), [])
        told = {"query_id": query_id, "store": self._services.store_id}
        return fl.FlightInfo(schema.with_metadata(told), descriptor, [ticket])

    def schema(self, call: SqlCall, command: Message) -> pa.Schema:
        """Return the schema of a statement's answer."""
        return described(self._describe(call, self._statement(call, command)).schema)

    def get(self, call: SqlCall, ticket: Message) -> fl.FlightDataStream:
        """Run a statement."""
        statement, query_id = handle_of(ticket.blob(1))
        return answer_statement(
            call.context, self._services, call.permit, statement, query_id, described
        )

    def prepare(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Return the handle of a statement, the schemas of its answer and its parameters."""
        statement = self._statement(call, unpacked(body))
        found = self._describe(call, statement)
        parameters = _bindable(found.parameters)
        return [prepared_result(encoded_handle(statement), described(found.schema), parameters)]

    def close(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Check the handle; there is nothing to close."""
        handle_of(unpacked(body).blob(1))
        return []

    def cancel(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Answer CancelFlightInfo: end the query of a FlightInfo."""
        return [varint_field(1, self._cancel(Message("CancelFlightInfo", body)))]

    def cancel_query(self, call: SqlCall, body: bytes) -> list[bytes]:
        """Answer CancelQuery, the older form of CancelFlightInfo."""
        return [packed("ActionCancelQueryResult", varint_field(1, self._cancel(unpacked(body))))]

    def _cancel(self, asked: Message) -> int:
        handles = [handle_of(unpacked(ticket).blob(1)) for ticket in tickets_of(asked.blob(1))]
        ended = [self._services.sql.cancel(query_id) for _, query_id in handles]
        return _CANCELLED if any(ended) else _NOT_CANCELLABLE

    def bind(self, call: SqlCall, command: Message, reader: Any, writer: Any) -> None:
        """Read one row of parameters, and answer with a handle that has it."""
        statement, _ = handle_of(command.blob(1))
        with permitted(self._services, call.permit, reader, writer) as (messages, answers):
            row: pa.RecordBatch | None = None
            while (chunk := next_chunk(messages, MAX_MESSAGE_BYTES)) is not None:
                batch = batch_of(chunk)
                if batch.num_rows == 0:
                    continue
                if row is not None:
                    raise BadRequest("the parameters have several rows; a query takes exactly one")
                row = batch
            handle = encoded_handle(checked(replace(statement, parameters=row)))
            if len(handle) > MAX_MESSAGE_BYTES // 2:
                raise BadRequest(
                    f"statement and parameters have {len(handle)} B; at most"
                    f" {MAX_MESSAGE_BYTES // 2} are taken"
                )
            send_answer(answers, bytes_field(1, handle))

    def _statement(self, call: SqlCall, message: Message) -> Statement:
        """Return the statement of a command, or of a request to prepare one."""
        if message.name == "CommandPreparedStatementQuery":
            return handle_of(message.blob(1))[0]
        if message.blob(2):
            raise NotAvailable("Flight SQL: transactions are not supported")
        return checked(Statement(message.text(1), default_namespace(call.context)))

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
