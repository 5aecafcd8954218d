"""The methods of Flight, each in a thread of gRPC's, and the address where they are served.

The methods decode, call the rooms and translate errors, and hold no state. ``sys.tracebacklimit``
is 0 in the process, as pyarrow would put tracebacks into clients' messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import NotAvailable
from ingester.query.ticket import Ticket, encode_ticket
from ingester.server.auth.access import Permit
from ingester.server.flight.actions import ACTIONS, run_action
from ingester.server.flight.callers import (
    OriginNames,
    middleware,
    permit_of,
    permitted,
    spanned,
    trace_of,
)
from ingester.server.flight.get import PermittedQuery, answer_ticket
from ingester.server.flight.handshake import Greeter
from ingester.server.flight.put import PutCall
from ingester.server.flight.put_messages import PutLimits
from ingester.server.flight.refusals import no_flight_errors, refusals
from ingester.server.flight.requests import (
    MAX_BODY_BYTES,
    MAX_CRITERIA_BYTES,
    MAX_DESCRIPTOR_BYTES,
    CopyCommand,
    SyncCommand,
    check_bytes,
    parse_put,
    parse_table_path,
)
from ingester.server.flight.sql import answer_statement
from ingester.server.flight.sync import CopyCall, SyncCall
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.server.tls import Certificates
from ingester.sql.request import is_sql, parse_statement

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and port, and TLS if it has certificates. gRPC requires TLS 1.2 by default."""

    host: str
    """A name or an address, without brackets."""
    port: int
    certificates: Certificates | None = None

    @property
    def location(self) -> str:
        """The address for gRPC: ``grpc+tls://host:port``, or ``grpc://`` without TLS."""
        return f"{self.scheme}://{self.shown_host}:{self.port}"

    @property
    def scheme(self) -> str:
        """The scheme of the address."""
        return "grpc" if self.certificates is None else "grpc+tls"

    @property
    def shown_host(self) -> str:
        """The host as written in an address: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def tls_arguments(self) -> dict[str, Any]:
        """Return the TLS arguments of pyarrow's server."""
        if self.certificates is None:
            return {}
        arguments: dict[str, Any] = {
            "tls_certificates": [(self.certificates.cert, self.certificates.key)]
        }
        if self.certificates.client_ca is not None:
            arguments |= {
                "verify_client": True,
                "root_certificates": self.certificates.client_ca,
            }
        return arguments


_encode = msgspec.json.Encoder().encode


class IngesterServer(fl.FlightServerBase):  # type: ignore[misc]
    """The Flight server of a daemon. gRPC provides the threads; the portal leads to the loop."""

    def __init__(
        self,
        address: ListenAddress,
        services: Services,
        portal: Portal,
        limits: PutLimits,
    ) -> None:
        """Bind at once; ``port`` has the port afterwards. Blocks briefly: not on a busy loop."""
        self._services = services
        self._portal = portal
        self._limits = limits
        self._access = services.access
        self._origins = OriginNames(services.access, services.known_origins, portal)
        tls = address.tls_arguments()
        super().__init__(
            address.location, auth_handler=Greeter(), middleware=middleware(services), **tls
        )

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take a stream of writes; see :mod:`ingester.server.flight.put`."""
        trace = trace_of(context, self._services.traces)
        with self._refusals(context, trace):
            permit = self._permit(context, "put")
            command, portal, services = parse_put(descriptor), self._portal, self._services
            permit.require(f"put {command.type}", command.namespace, command.table)
            permit.done(f"put {command.type}", command.namespace, command.table, None)
            table = command.namespace, command.table
            with (
                self._origins.claimed(permit, command),
                permitted(services, permit, reader, writer) as (messages, answers),
            ):
                if isinstance(command, CopyCommand):
                    copy = CopyCall(portal, services.copies, command, self._limits)
                    with spanned(trace, "DoPut", "copy", *table):
                        copy.serve(messages, answers)
                    return
                if isinstance(command, SyncCommand):
                    sync = SyncCall(portal, services, command, self._limits)
                    with spanned(trace, "DoPut", "sync", *table):
                        sync.serve(messages, answers)
                    return
                traces = None if trace is None else trace.stream(command.type, *table)
                call = PutCall(portal, services.writes, command, self._limits, traces)
                try:
                    call.serve(messages, answers)
                finally:
                    if call.refused_bytes:
                        portal.post(services.freed, call.refused_bytes)

    def do_get(self, context: Any, ticket: Any) -> fl.FlightDataStream:
        """Answer a query; see :mod:`ingester.query`."""
        began_ns = time.time_ns()
        trace = trace_of(context, self._services.traces)
        with self._refusals(context, trace):
            permit = self._permit(context, "get")
            if is_sql(ticket.ticket):
                statement = parse_statement(ticket.ticket)
                return answer_statement(context, self._services, permit, statement)
            parsed = self._services.queries.ticket(ticket.ticket)
            permit.require(f"get {parsed.scope}", parsed.namespace, parsed.table)
            asked = PermittedQuery(parsed, permit, trace, began_ns)
            return answer_ticket(context, self._portal, self._services, asked)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: no feature uses it."""
        with self._refusals(context):
            self._permit(context, "exchange").require("exchange")
            raise NotAvailable("DoExchange is not available: write by DoPut, query by DoGet")

    def get_flight_info(self, context: Any, descriptor: Any) -> fl.FlightInfo:
        """Return schema, counts and ticket of a table, or of a command that is a ticket."""
        with self._refusals(context):
            permit, ticket = self._permit(context, "info"), self._ticket(descriptor)
            permit.require("info", ticket.namespace, ticket.table)
            return self._portal.call(self._info, ticket, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> fl.SchemaResult:
        """Return the schema of a query's answer."""
        with no_flight_errors(context), self._refusals(context):
            permit, ticket = self._permit(context, "schema"), self._ticket(descriptor)
            permit.require("schema", ticket.namespace, ticket.table)
            schema, _, _ = self._portal.call(self._services.queries.preview, ticket)
            return fl.SchemaResult(schema)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[fl.FlightInfo]:
        """List the tables that the caller may see, by path."""
        with self._refusals(context):
            permit = self._permit(context, "list_flights")
            permit.require("list_flights")
            sees = permit.sees("list_flights")
            check_bytes("criteria", len(criteria or b""), MAX_CRITERIA_BYTES)
            names = self._portal.call(self._services.catalog.names)
        for namespace, table in names:
            if sees is not None and not sees(namespace):
                continue
            with self._refusals(context):
                permit.renew()
                descriptor = fl.FlightDescriptor.for_path(namespace, table)
                yield self._portal.call(self._info, Ticket(namespace, table), descriptor)

    def do_action(self, context: Any, action: Any) -> list[fl.Result]:
        """Run an action; see :mod:`ingester.server.flight.actions`."""
        trace = trace_of(context, self._services.traces)
        with self._refusals(context, trace):
            check_bytes("action type", len(action.type), MAX_DESCRIPTOR_BYTES)
            permit = self._permit(context, f"action {action.type}")
            body = body_of(action)
            kind = action.type if action.type in ACTIONS else "unknown"
            with spanned(trace, "DoAction", f"action {kind}"):
                objects = self._portal.call(run_action, self._services, permit, action.type, body)
            return [fl.Result(pa.py_buffer(_encode(each))) for each in objects]

    def list_actions(self, context: Any) -> list[fl.ActionType]:
        """List all actions by name."""
        with self._refusals(context):
            self._permit(context, "list_actions").require("list_actions")
        return [fl.ActionType(name, action.description) for name, action in ACTIONS.items()]

    async def _info(self, ticket: Ticket, descriptor: Any) -> fl.FlightInfo:
        schema, rows, nbytes = await self._services.queries.preview(ticket)
        endpoint = fl.FlightEndpoint(encode_ticket(ticket), [])
        return fl.FlightInfo(schema, descriptor, [endpoint], rows, nbytes)

    def _ticket(self, descriptor: Any) -> Ticket:
        if descriptor.descriptor_type == fl.DescriptorType.CMD:
            return self._services.queries.ticket(descriptor.command)
        namespace, table = parse_table_path(descriptor)
        return Ticket(namespace, table)

    def _permit(self, context: Any, asked: str) -> Permit:
        return permit_of(context, self._access, asked)

    def _refusals(
        self, context: Any, trace: CallTrace | None = None
    ) -> AbstractContextManager[None]:
        metrics = self._services.metrics
        told = (metrics.refused, metrics.client_gone, metrics.limit_refused)
        return refusals(context, *told, trace=trace)


def body_of(action: Any) -> bytes:
    """Return the body of an action. Raises BadRequest if it is too large."""
    check_bytes("action body", 0 if action.body is None else action.body.size, MAX_BODY_BYTES)
    return b"" if action.body is None else bytes(action.body.to_pybytes())
