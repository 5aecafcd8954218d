"""DoGet: an answer as a Flight stream, and what GetFlightInfo says about it beforehand.

Law of this file: the generator holds the stream and nothing else, so that it is freed, and the
snapshot with it, when gRPC drops the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.query.queries import Queries
from ingester.query.stream import AnswerStream
from ingester.query.ticket import parse_ticket
from ingester.server.flight.refusals import refusals
from ingester.server.flight.thread_state import kept_thread_state
from ingester.server.portal import Portal
from persist.manifest import WriterIdentity

_encode = msgspec.json.Encoder().encode


def answer_ticket(
    context: Any,
    portal: Portal,
    queries: Queries,
    writer: WriterIdentity,
    body: bytes,
    *,
    on_first: Callable[[float], None],
    on_done: Callable[[AnswerStream], None],
) -> fl.FlightDataStream:
    """The stream that pyarrow sends.

    ``on_first`` gets the seconds from the call to the first part; ``on_done`` is called at the end.
    """
    began = time.monotonic()
    ticket = parse_ticket(body)
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
    return fl.GeneratorStream(schema, _batches(context, stream, began, on_first, on_done))


def _batches(
    context: Any,
    stream: AnswerStream,
    began: float,
    on_first: Callable[[float], None],
    on_done: Callable[[AnswerStream], None],
) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    metadata: dict[tuple[str, str], pa.Buffer] = {}
    with kept_thread_state(), refusals(context):
        for part in stream:
            if not metadata:
                on_first(time.monotonic() - began)
            key = (part.partition, part.source)
            if key not in metadata:
                metadata = {key: pa.py_buffer(_encode({"partition": key[0], "source": key[1]}))}
            batch = part.batch
            del part
            yield batch, metadata[key]
            del batch
        on_done(stream)
