"""DoGet: the answer of a query as a Flight stream.

Law of this file: the generator holds the stream and nothing else of a query, so that the stream is
freed, and its snapshot with it, when gRPC drops the call.

A thread of gRPC's has no Python state of its own: CPython makes one for each call into Python and
takes it down afterwards, which maps and unmaps memory, 15 % of the time of a scan with a call for
each part. So the generator keeps the state from one call to the next.

Source: CPython's C API, "Non-Python created threads" (calls of PyGILState_Ensure nest).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.query.live_groups import Group
from ingester.query.live_tail import LiveSnapshot
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from ingester.server.auth.access import Permit
from ingester.server.flight.permitted import permitted_wait
from ingester.server.flight.refusals import refusals
from ingester.server.portal import Portal
from ingester.server.services import Services

_encode = msgspec.json.Encoder().encode
_ensure = ctypes.pythonapi.PyGILState_Ensure
_ensure.restype = ctypes.c_int
_release = ctypes.pythonapi.PyGILState_Release
_release.argtypes = [ctypes.c_int]
_release.restype = None


def answer_ticket(
    context: Any, portal: Portal, services: Services, ticket: Ticket, permit: Permit
) -> fl.FlightDataStream:
    """Open the query of a ticket that is permitted; return the stream that pyarrow sends."""
    began = time.monotonic()
    queries, writer = services.queries, services.writer
    if ticket.scope == "live":
        catalog, live = services.catalog, services.live
        name = (ticket.namespace, ticket.table)
        table = catalog.known(*name) or portal.call(catalog.open, *name)
        live.check(table, ticket)
        wait = partial(live.wait, table, ticket, context.is_cancelled)
        portal.call(permitted_wait, services.access, permit, wait)
        began = time.monotonic()
        stream = live.answer(table, ticket)
    else:
        stream = queries.open_at_once(ticket) or queries.answer(
            *portal.call(queries.snapshot, ticket), ticket
        )
    metadata = {
        "ingester_id": writer.ingester_id,
        "incarnation": writer.incarnation,
        "epoch": str(writer.epoch),
        "snapshot_sequence": str(stream.snapshot.sequence),
        "manifest_version": str(stream.snapshot.version),
        "table_version": str(stream.snapshot.table_version),
    }
    if isinstance(stream.snapshot, LiveSnapshot):
        position = {"ingester_id": writer.ingester_id, **stream.snapshot.position._asdict()}
        position["version"] = stream.snapshot.version
        metadata["position"] = _encode(position).decode()
        metadata["more"] = "true" if stream.snapshot.more else "false"
        metadata["rows_behind"] = str(stream.snapshot.rows_behind)
        if coming := services.live.followers.coming(stream.table):
            metadata["coming"] = _encode(coming).decode()
    schema = stream.selection.schema.with_metadata(metadata)
    return fl.GeneratorStream(schema, _batches(context, services, stream, permit, began))


def _batches(
    context: Any, services: Services, stream: AnswerStream, permit: Permit, began: float
) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    metadata: dict[tuple[str, str, Group | None], pa.Buffer] = {}
    with _kept_thread_state(), refusals(context, limited=services.metrics.limit_refused):
        for part in stream:
            permit.renew()
            if not metadata:
                services.metrics.first_batch_sent(time.monotonic() - began)
            key = (part.partition, part.source, part.group)
            if key not in metadata:
                metadata = {key: pa.py_buffer(_encode(_described(*key)))}
            batch = part.batch
            del part
            yield batch, metadata[key]
            del batch
        services.answered(stream)


def _described(partition: str, source: str, group: Group | None) -> dict[str, object]:
    described: dict[str, object] = {"partition": partition, "source": source}
    if group is not None:
        spec_id, values = group.handle.partition
        described |= {"spec_id": spec_id, "values": values, "epoch": group.handle.epoch}
        described["buffer"] = group.handle.first_seq
        described |= {"first_seq": group.first_seq, "last_seq": group.last_seq}
    return described


@contextmanager
def _kept_thread_state() -> Iterator[None]:
    """Keep the state of this thread inside the block, which may be left and entered in between."""
    thread = threading.get_ident()
    state = _ensure()
    try:
        yield
    finally:
        # Elsewhere it is not ours to release: the thread then keeps its state until it ends.
        if threading.get_ident() == thread:
            _release(state)
