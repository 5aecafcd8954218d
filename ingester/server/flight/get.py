"""DoGet: the answer of a query as a Flight stream.

Law of this file: the generator holds the stream and nothing else of a query, so that the stream is
freed, and its snapshot with it, when gRPC drops the call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.query.stream import AnswerStream
from ingester.query.ticket import parse_ticket
from ingester.server.flight.refusals import refusals
from ingester.server.flight.thread_state import kept_thread_state
from ingester.server.portal import Portal
from ingester.server.services import Services

_encode = msgspec.json.Encoder().encode


def answer_ticket(
    context: Any, portal: Portal, services: Services, body: bytes
) -> fl.FlightDataStream:
    """Open the query of a ticket; return the stream that pyarrow sends."""
    began = time.monotonic()
    ticket, queries, writer = parse_ticket(body), services.queries, services.writer
    stream = queries.open_at_once(ticket) or portal.call(queries.open, ticket)
    schema = stream.selection.schema.with_metadata(
        {
            "ingester_id": writer.ingester_id,
            "incarnation": writer.incarnation,
            "epoch": str(writer.epoch),
            "snapshot_sequence": str(stream.snapshot.sequence),
            "manifest_version": str(stream.snapshot.version),
        }
    )
    return fl.GeneratorStream(schema, _batches(context, services, stream, began))


def _batches(
    context: Any, services: Services, stream: AnswerStream, began: float
) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    metadata: dict[tuple[str, str], pa.Buffer] = {}
    with kept_thread_state(), refusals(context):
        for part in stream:
            if not metadata:
                services.metrics.first_batch_sent(time.monotonic() - began)
            key = (part.partition, part.source)
            if key not in metadata:
                metadata = {key: pa.py_buffer(_encode({"partition": key[0], "source": key[1]}))}
            batch = part.batch
            del part
            yield batch, metadata[key]
            del batch
        services.answered(stream)
