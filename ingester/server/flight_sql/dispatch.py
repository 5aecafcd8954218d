"""Flight SQL's commands, tickets and actions by name, and the rights that they need.

    GetFlightInfo, GetSchema   a command in the descriptor
    DoGet                      a ticket: a TicketStatementQuery, or a command of the metadata itself
    DoPut                      a command, then rows: parameters, or rows to write
    DoAction                   prepared statements, cancelling

Answers hold only namespaces that the caller may read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import BadRequest
from ingester.server.flight.callers import default_namespace, spanned, trace_of
from ingester.server.flight.put_messages import PutLimits
from ingester.server.flight.refusals import no_flight_errors
from ingester.server.flight.server import IngesterServer, ListenAddress, body_of
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql.ingest import Ingests, parse_ingest
from ingester.server.flight_sql.messages import Message, is_flight_sql, unpacked, unsupported
from ingester.server.flight_sql.metadata import Batches, Metadata
from ingester.server.flight_sql.statements import Statements
from ingester.server.portal import Portal
from ingester.server.services import Services

Run = Callable[[Statements, SqlCall, bytes], list[bytes]]
SQL_ACTIONS: dict[str, tuple[Run, str]] = {
    "CreatePreparedStatement": (Statements.prepare, "Prepare an SQL statement"),
    "ClosePreparedStatement": (Statements.close, "Close a prepared statement"),
    "CancelFlightInfo": (Statements.cancel, "End an SQL query"),
    "CancelQuery": (Statements.cancel_query, "End an SQL query; the older CancelFlightInfo"),
}
"""The actions by name, with their descriptions."""
_QUERIES = ("CommandStatementQuery", "CommandPreparedStatementQuery")
_WRITES = ("CommandStatementUpdate", "CommandPreparedStatementUpdate")


class FlightSqlServer(IngesterServer):
    """The Flight server of a daemon, with Flight SQL."""

    def __init__(
        self, address: ListenAddress, services: Services, portal: Portal, limits: PutLimits
    ) -> None:
        """Bind at once, as :class:`IngesterServer`."""
        self._ingests = Ingests(portal, services, limits)
        self._statements = Statements(services)
        self._metadata = Metadata(services, portal)
        super().__init__(address, services, portal, limits)

    def get_flight_info(self, context: Any, descriptor: Any) -> fl.FlightInfo:
        """Return the schema of an answer, and the ticket that DoGet takes."""
        if not _is_sql(descriptor):
            return super().get_flight_info(context, descriptor)
        with self._refusals(context):
            call = self._call(context, "info", "info sql")
            command = unpacked(descriptor.command)
            if command.name in _QUERIES:
                return self._statements.info(call, command, descriptor)
            endpoint = fl.FlightEndpoint(descriptor.command, [])
            return fl.FlightInfo(self._metadata.schema(call, command), descriptor, [endpoint])

    def get_schema(self, context: Any, descriptor: Any) -> fl.SchemaResult:
        """Return the schema of an answer."""
        if not _is_sql(descriptor):
            return super().get_schema(context, descriptor)
        with no_flight_errors(context), self._refusals(context):
            call = self._call(context, "schema", "schema sql")
            command = unpacked(descriptor.command)
            told = self._statements if command.name in _QUERIES else self._metadata
            return fl.SchemaResult(told.schema(call, command))

    def do_get(self, context: Any, ticket: Any) -> fl.FlightDataStream:
        """Return an answer."""
        if not is_flight_sql(ticket.ticket):
            return super().do_get(context, ticket)
        with self._refusals(context, trace_of(context, self._services.traces)):
            call = self._call(context, "get", "get sql")
            command = unpacked(ticket.ticket)
            if command.name in ("TicketStatementQuery", "CommandPreparedStatementQuery"):
                return self._statements.get(call, command)
            schema = self._metadata.schema(call, command)
            return fl.GeneratorStream(schema, self._permitted(call, command))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take parameters of a prepared statement, or rows."""
        if not _is_sql(descriptor):
            super().do_put(context, descriptor, reader, writer)
            return
        trace = trace_of(context, self._services.traces)
        with self._refusals(context, trace), spanned(trace, "DoPut", "sql"):
            call = self._call(context, "put")
            command = unpacked(descriptor.command)
            if command.name == "CommandStatementIngest":
                ingest = parse_ingest(command, default_namespace(context))
                self._ingests.serve(call, ingest, reader, writer)
                return
            if command.name not in (*_WRITES, "CommandPreparedStatementQuery"):
                raise unsupported(command.name)
            call.permit.require("put sql")
            if command.name in _WRITES:
                raise BadRequest(
                    "SQL statements cannot change rows: write by DoPut, by adbc_ingest or with a"
                    " client"
                )
            self._statements.bind(call, command, reader, writer)

    def do_action(self, context: Any, action: Any) -> list[fl.Result]:
        """Prepare or cancel a statement."""
        if action.type not in SQL_ACTIONS:
            return super().do_action(context, action)
        trace, asked = trace_of(context, self._services.traces), f"action {action.type}"
        with self._refusals(context, trace), spanned(trace, "DoAction", asked):
            call = self._call(context, asked, asked)
            run, _ = SQL_ACTIONS[action.type]
            results = run(self._statements, call, body_of(action))
            return [fl.Result(pa.py_buffer(each)) for each in results]

    def list_actions(self, context: Any) -> list[fl.ActionType]:
        """List all actions by name."""
        told = [fl.ActionType(name, about) for name, (_, about) in SQL_ACTIONS.items()]
        return [*super().list_actions(context), *told]

    def _call(self, context: Any, asked: str, need: str = "") -> SqlCall:
        """Return a call that is permitted. Raises NotAuthenticated, AccessDenied."""
        call = SqlCall(context, self._permit(context, asked))
        if need:
            call.permit.require(need)
        return call

    def _permitted(self, call: SqlCall, command: Message) -> Batches:
        with self._refusals(call.context):
            for batch in self._metadata.batches(call, command):
                call.permit.renew()
                yield batch


def _is_sql(descriptor: Any) -> bool:
    is_command = descriptor.descriptor_type == fl.DescriptorType.CMD
    return is_command and is_flight_sql(descriptor.command)
