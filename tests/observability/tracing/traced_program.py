"""A traced user program: it writes and queries within its own span and prints the trace id.

    python -m tests.observability.tracing.traced_program FLIGHT RECEIVER

It runs in its own process because a tracer provider cannot be unset, and later tests must not
have one.
"""

from __future__ import annotations

import contextlib
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ingester.client import Client, InvalidRequest
from tests.drivers.wire import numbers

BATCH = numbers(0, 3)
TABLE = ("traced", "library")


def main(flight: str, receiver: str) -> None:
    """Write three batches and query three times; the last query fails."""
    provider = TracerProvider(resource=Resource.create({"service.name": "a program"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=receiver)))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("a program")
    with Client(flight) as client, tracer.start_as_current_span("work") as work:
        client.write(*TABLE, BATCH)
        with client.writer(*TABLE, BATCH.schema) as writer:
            writer.write(BATCH).result()
            # The daemon has announced that it traces, so each batch carries its own span.
            writer.write(BATCH).result()
        assert client.query(*TABLE).num_rows == 3 * BATCH.num_rows
        with client.query_stream(*TABLE) as stream:
            assert sum(batch.num_rows for batch, _ in stream) == 3 * BATCH.num_rows
        with contextlib.suppress(InvalidRequest):
            client.query(*TABLE, ["nowhere"])
            raise AssertionError("there is no such column")
    provider.shutdown()
    print(format(work.get_span_context().trace_id, "032x"))


if __name__ == "__main__":
    main(*sys.argv[1:])
