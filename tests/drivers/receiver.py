"""An OTLP receiver over gRPC, like a collector's, that keeps the spans it receives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span; ids in hexadecimal digits, times in nanoseconds since 1970."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    """The ids of linked spans."""
    attributes: dict[str, Any]
    resource: dict[str, Any]
    began_ns: int
    ended_ns: int
    failed: bool
    message: str


@dataclass
class Receiver(TraceServiceServicer):
    """The spans received so far. While ``gate`` is not set, each call blocks."""

    endpoint: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> Any:
        """Keep the spans of a call."""
        self.gate.wait()
        with self._came:
            self.spans += _spans(request)
            self._came.notify_all()
        return ExportTraceServiceResponse()

    def wait(
        self, found: Callable[[list[ReceivedSpan]], bool], within_s: float = 20.0
    ) -> list[ReceivedSpan]:
        """Wait until the received spans satisfy a condition and return all of them."""
        with self._came:
            there = self._came.wait_for(lambda: found(self.spans), within_s)
            names = sorted({span.name for span in self.spans})
            assert there, f"not all spans came in {within_s:g} s: {names}"
            return list(self.spans)

    def named(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """Wait for a number of spans of one name and return all spans of that name."""
        came = self.wait(lambda spans: sum(span.name == name for span in spans) >= count)
        return [span for span in came if span.name == name]


@contextmanager
def otlp_receiver(port: int = 0) -> Iterator[Receiver]:
    """Run a receiver on the loopback address."""
    receiver = Receiver()
    receiver.gate.set()
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    receiver.endpoint = f"http://127.0.0.1:{bound}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.stop(grace=None).wait()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    links=[link.span_id.hex() for link in span.links],
                    attributes=_values(span.attributes),
                    resource=resource,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    failed=span.status.code == 2,
                    message=span.status.message,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
