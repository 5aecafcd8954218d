"""Flight SQL's commands, tickets and actions by name, and the rights that they need.

    GetFlightInfo, GetSchema   a command in the descriptor
    DoGet                      a ticket: a TicketStatementQuery, or a command of the metadata itself
    DoPut                      a command, then rows: parameters, or rows to write
    DoAction                   prepared statements, cancelling

Answers hold only namespaces that the caller may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import BadRequest, NotAvailable
from ingester.server.flight.callers import default_namespace
from ingester.server.flight.put_messages import PutLimits
from ingester.server.flight.refusals import refusals
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql.ingest import Ingests, parse_ingest
from ingester.server.flight_sql.messages import is_flight_sql, unpacked
from ingester.server.flight_sql.metadata import QUESTIONS, Batches, Metadata
from ingester.server.flight_sql.statements import Statements
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.shown_text import shown_name

SQL_ACTIONS: Mapping[str, str] = {
    "CreatePreparedStatement": "Prepare an SQL statement",
    "ClosePreparedStatement": "Close a prepared statement",
    "CancelFlightInfo": "End an SQL query",
    "CancelQuery": "End an SQL query; the older form of CancelFlightInfo",
}
"""The actions by name, with their descriptions."""
_QUERIES = ("CommandStatementQuery", "CommandPreparedStatementQuery")
_WRITES = ("CommandStatementUpdate", "CommandPreparedStatementUpdate")


class FlightSql:
    """Flight SQL of one daemon; see :class:`ingester.server.flight.sql.SqlProtocol`."""

    def __init__(self, services: Services, portal: Portal, limits: PutLimits) -> None:
        self._ingests = Ingests(portal, services, limits)
        self._services = services
        self._statements = Statements(services)
        self._metadata = Metadata(services, portal)
        self._run: dict[str, Callable[[SqlCall, bytes], list[bytes]]] = {
            "CreatePreparedStatement": self._statements.prepare,
            "ClosePreparedStatement": self._statements.close,
            "CancelFlightInfo": self._statements.cancel,
            "CancelQuery": self._statements.cancel_query,
        }
        self.actions = SQL_ACTIONS

    def takes(self, message: bytes) -> bool:
        """Return whether a command or a ticket is for Flight SQL."""
        return is_flight_sql(message)

    def info(self, call: SqlCall, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Answer GetFlightInfo. Raises NotAvailable for an unknown command."""
        call.permit.require("info sql")
        command = unpacked(descriptor.command)
        if command.name in _QUERIES:
            return self._statements.info(call, command, descriptor)
        if command.name not in QUESTIONS:
            raise unsupported(command.name)
        endpoint = fl.FlightEndpoint(descriptor.command, [])
        return fl.FlightInfo(self._metadata.schema(command), descriptor, [endpoint])

    def schema(self, call: SqlCall, command: bytes) -> pa.Schema:
        """Answer GetSchema. Raises NotAvailable for an unknown command."""
        call.permit.require("schema sql")
        found = unpacked(command)
        if found.name in _QUERIES:
            return self._statements.schema(call, found)
        if found.name not in QUESTIONS:
            raise unsupported(found.name)
        return self._metadata.schema(found)

    def get(self, call: SqlCall, ticket: bytes) -> fl.FlightDataStream:
        """Answer DoGet. Raises NotAvailable for an unknown ticket."""
        found = unpacked(ticket)
        if found.name in ("TicketStatementQuery", "CommandPreparedStatementQuery"):
            return self._statements.get(call, found)
        if found.name not in QUESTIONS:
            raise unsupported(found.name)
        call.permit.require("get sql")
        batches = self._refused(call, self._metadata.batches(call, found))
        return fl.GeneratorStream(self._metadata.schema(found), batches)

    def put(self, call: SqlCall, command: bytes, reader: Any, writer: Any) -> None:
        """Serve a DoPut stream. Raises NotAvailable for an unknown command."""
        found = unpacked(command)
        if found.name == "CommandStatementIngest":
            namespace = default_namespace(call.context)
            self._ingests.serve(call, parse_ingest(found, namespace), reader, writer)
        elif found.name == "CommandPreparedStatementQuery":
            call.permit.require("put sql")
            self._statements.bind(call, found, reader, writer)
        elif found.name in _WRITES:
            call.permit.require("put sql")
            raise BadRequest(
                "SQL statements cannot change rows: write by DoPut, by adbc_ingest or with a client"
            )
        else:
            raise unsupported(found.name)

    def action(self, call: SqlCall, name: str, body: bytes) -> list[bytes]:
        """Run an action of ``actions``."""
        call.permit.require(f"action {name}")
        return self._run[name](call, body)

    def _refused(self, call: SqlCall, batches: Batches) -> Batches:
        metrics = self._services.metrics
        with refusals(call.context, metrics.refused, metrics.client_gone, metrics.limit_refused):
            for batch in batches:
                call.permit.renew()
                yield batch


def unsupported(name: str) -> NotAvailable:
    """Return the error for a command or action that is not supported."""
    return NotAvailable(f"Flight SQL: {shown_name(name)} is not supported")
