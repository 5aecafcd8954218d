"""DoGet: the answer of a query as a Flight stream.

The generator holds only the stream of a query, so that the stream and its snapshot are freed when
gRPC drops the call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import ClientGone
from ingester.query.live_groups import LiveGroup
from ingester.query.live_tail import LiveSnapshot
from ingester.query.read_context import AnswerPart
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from ingester.server.auth.access import Permit
from ingester.server.flight.callers import permitted_wait
from ingester.server.flight.refusals import refusals
from ingester.server.portal import Portal
from ingester.server.services import Services

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace, QueryTrace

_encode = msgspec.json.Encoder().encode


class PermittedQuery(NamedTuple):
    """A permitted query."""

    ticket: Ticket
    permit: Permit
    trace: CallTrace | None = None
    """The trace of the call; None without tracing."""
    began_ns: int = 0
    """The start of the call, in nanoseconds since 1970."""

    def begin(self) -> QueryTrace | None:
        """Begin the query's trace; None for untraced calls and for calls that wait for rows."""
        ticket = self.ticket
        if self.trace is None or ticket.scope == "live":
            return None
        return self.trace.query(ticket.namespace, ticket.table, ticket.scope, self.began_ns)


def answer_ticket(
    context: Any, portal: Portal, services: Services, asked: PermittedQuery
) -> fl.FlightDataStream:
    """Open a permitted query and return the stream that pyarrow sends."""
    query = asked.begin()
    try:
        return _answer(context, portal, services, asked, query)
    except BaseException as exc:
        if query is not None:
            query.refused(exc)
        raise


def _answer(
    context: Any,
    portal: Portal,
    services: Services,
    asked: PermittedQuery,
    query: QueryTrace | None,
) -> fl.FlightDataStream:
    ticket, permit = asked.ticket, asked.permit
    check_wanted = partial(_check_client, context)
    began = time.monotonic()
    queries = services.queries
    if ticket.scope == "live":
        catalog, live = services.catalog, services.live
        name = (ticket.namespace, ticket.table)
        table = catalog.known(*name) or portal.call(catalog.open, *name)
        live.check(table, ticket)
        wait = partial(live.wait, table, ticket, context.is_cancelled)
        portal.call(permitted_wait, services.access, permit, wait)
        began = time.monotonic()
        stream = live.answer(table, ticket, check_wanted)
    else:
        stream = queries.open_at_once(ticket, check_wanted) or queries.answer(
            *portal.call(queries.snapshot, ticket), ticket, check_wanted=check_wanted
        )
    if query is not None:
        query.step("snapshot")
    schema = stream.selection.schema.with_metadata(_described_answer(services, stream))
    parts = _Parts(stream, query, asked.trace, began)
    return fl.GeneratorStream(schema, _batches(context, services, parts, permit))


def _check_client(context: Any) -> None:
    """Raise ClientGone if the call was cancelled or its deadline has passed."""
    if context.is_cancelled():
        raise ClientGone("the call was ended before its answer")


def _described_answer(services: Services, stream: AnswerStream) -> dict[str, str]:
    writer = services.writer
    metadata = {
        "ingester_id": writer.ingester_id,
        "incarnation": writer.incarnation,
        "epoch": str(writer.epoch),
        "store": services.store_id,
        "snapshot_sequence": str(stream.snapshot.sequence),
        "manifest_version": str(stream.snapshot.version),
        "table_version": str(stream.snapshot.table_version),
    }
    if stream.snapshot.taken_version is not None:
        metadata["taken_version"] = str(stream.snapshot.taken_version)
    if isinstance(stream.snapshot, LiveSnapshot):
        position = {"ingester_id": writer.ingester_id, **stream.snapshot.position._asdict()}
        position["version"] = stream.snapshot.version
        metadata["position"] = _encode(position).decode()
        metadata["more"] = "true" if stream.snapshot.more else "false"
        metadata["rows_behind"] = str(stream.snapshot.rows_behind)
        if coming := services.live.followers.coming(stream.table):
            metadata["coming"] = _encode(coming).decode()
    return metadata


class _Parts(NamedTuple):
    """An answer that is being sent."""

    stream: AnswerStream
    query: QueryTrace | None
    trace: CallTrace | None
    began: float
    """The start of the query, by the monotonic clock."""

    def each(self) -> Iterator[AnswerPart]:
        """Yield the parts; their times are noted if the query is traced."""
        return self.stream if self.query is None else self.query.watched(self.stream)


def _batches(
    context: Any, services: Services, parts: _Parts, permit: Permit
) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    metadata: dict[tuple[str, str, LiveGroup | None], pa.Buffer] = {}
    metrics = services.metrics
    told = (metrics.refused, metrics.client_gone, metrics.limit_refused)
    with refusals(context, *told, trace=parts.trace):
        for part in parts.each():
            permit.renew()
            if not metadata:
                services.metrics.first_batch_sent(time.monotonic() - parts.began)
            key = (part.partition, part.source, part.group)
            if key not in metadata:
                metadata = {key: pa.py_buffer(_encode(_described(*key)))}
            batch = part.batch
            del part
            yield batch, metadata[key]
            del batch
        services.answered(parts.stream)


def _described(partition: str, source: str, group: LiveGroup | None) -> dict[str, object]:
    described: dict[str, object] = {"partition": partition, "source": source}
    if group is not None:
        spec_id, values = group.handle.partition
        described |= {"spec_id": spec_id, "values": values, "epoch": group.handle.epoch}
        described["buffer"] = group.handle.first_seq
        described |= {"first_seq": group.first_seq, "last_seq": group.last_seq}
    return described
