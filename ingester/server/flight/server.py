"""The methods of Flight, each in a gRPC thread of its own.

Law of this file: decode, hand over, translate what goes wrong; no state. ``sys.tracebacklimit`` is
0 in the process, as pyarrow would put server tracebacks into clients' messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import NotAvailable
from ingester.query.ticket import Ticket, encode_ticket
from ingester.server.auth.access import Permit
from ingester.server.flight.actions import ACTIONS, run_action
from ingester.server.flight.callers import middleware, permit_of
from ingester.server.flight.copy import CopyCall
from ingester.server.flight.door import Door
from ingester.server.flight.get import Asked, answer_ticket
from ingester.server.flight.origin_names import OriginNames
from ingester.server.flight.permitted import permitted
from ingester.server.flight.put import PutCall
from ingester.server.flight.put_reader import PutLimits
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
from ingester.server.flight.sync import SyncCall
from ingester.server.flight.tracing import spanned, trace_of, tracing
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.write.combiner import Combiner

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace

_encode = msgspec.json.Encoder().encode


class IngesterServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves one daemon. Threads come from gRPC; the loop is reached through the portal."""

    def __init__(
        self,
        door: Door,
        services: Services,
        portal: Portal,
        limits: PutLimits,
        combiner: Combiner,
    ) -> None:
        """Binds at once; ``port`` has the real port afterwards. Must be made in a thread or before
        the loop is busy: it blocks shortly.

        Args:
            combiner: of all servers of the daemon: its thread lives as long as the process.
        """
        self._services = services
        self._portal = portal
        self._limits = limits
        self._combiner = combiner
        self._access = services.access
        self._origins = OriginNames(services.access, services.known_origins, portal)
        read: dict[str, Any] = middleware(services.access, services.metrics.refused)
        read |= tracing(services.traces)
        super().__init__(door.location, middleware=read, **door.tls_arguments())

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
                call = PutCall(
                    portal, services.writes, command, self._limits, self._combiner, traces
                )
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
            parsed = self._services.queries.ticket(ticket.ticket)
            permit.require(f"get {parsed.scope}", parsed.namespace, parsed.table)
            asked = Asked(parsed, permit, trace, began_ns)
            return answer_ticket(context, self._portal, self._services, asked)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: nothing here needs it."""
        with self._refusals(context):
            self._permit(context, "exchange").require("exchange")
            raise NotAvailable("DoExchange is not available: write by DoPut, query by DoGet")

    def get_flight_info(self, context: Any, descriptor: Any) -> fl.FlightInfo:
        """Tell schema, counts and ticket of a table, or of a command that is a ticket."""
        with self._refusals(context):
            permit, ticket = self._permit(context, "info"), self._ticket(descriptor)
            permit.require("info", ticket.namespace, ticket.table)
            return self._portal.call(self._info, ticket, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> fl.SchemaResult:
        """Tell the schema with which a query would be answered."""
        with no_flight_errors(context), self._refusals(context):
            permit, ticket = self._permit(context, "schema"), self._ticket(descriptor)
            permit.require("schema", ticket.namespace, ticket.table)
            schema, _, _ = self._portal.call(self._services.queries.preview, ticket)
            return fl.SchemaResult(schema)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[fl.FlightInfo]:
        """List all tables that the caller may know of, by path."""
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
            check_bytes(
                "action body", 0 if action.body is None else action.body.size, MAX_BODY_BYTES
            )
            body = action.body.to_pybytes() if action.body is not None else b""
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
