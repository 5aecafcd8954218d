"""Flight's DoPut and DoAction as handmade frames over HTTP/2, with arbitrary bytes.

Arrow's own client validates what it sends. This client writes the protobuf of ``FlightData``
itself (field 1 the descriptor, 2 the IPC message's header, 3 app_metadata, 1000 its body).
"""

from __future__ import annotations

import base64
import socket
import struct
import time
import urllib.parse
from typing import NamedTuple

import h2.config
import h2.connection
import h2.errors
import h2.events
import pyarrow as pa

SERVICE = "/arrow.flight.protocol.FlightService/"
OK, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = "0", "2", "3", "4", "5"
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = "8", "12", "13", "14"


class Answered(NamedTuple):
    """How a call ended: gRPC status and message, ``None`` where the connection just ended."""

    status: str | None
    message: str
    results: int
    trailers: dict[str, str]

    def binary(self, name: str) -> bytes:
        """Return a trailer whose name ends in ``-bin``."""
        value = self.trailers[name]
        return base64.b64decode(value + "=" * (-len(value) % 4))


class NoAnswer(Exception):
    """Raised when the server does not end the call in time."""


def varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def path_descriptor(*path: str) -> bytes:
    """A FlightDescriptor of type PATH."""
    return b"\x08\x01" + b"".join(field(3, part.encode()) for part in path)


def command_descriptor(command: bytes) -> bytes:
    """A FlightDescriptor of type CMD."""
    return b"\x08\x02" + field(2, command)


def flight_data(
    header: bytes, body: bytes = b"", descriptor: bytes | None = None, metadata: bytes = b""
) -> bytes:
    """A FlightData message."""
    first = b"" if descriptor is None else field(1, descriptor)
    extra = field(3, metadata) if metadata else b""
    return first + field(2, header) + extra + (field(1000, body) if body else b"")


def ipc_parts(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Return (header, body) of every message of an IPC stream."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    found: list[tuple[bytes, bytes]] = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return found
        body = message.body
        found.append((message.metadata.to_pybytes(), b"" if body is None else body.to_pybytes()))


def ipc_stream(*batches: pa.RecordBatch, **options: object) -> list[tuple[bytes, bytes]]:
    """Return the messages of these batches: the schema first."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return ipc_parts(sink.getvalue().to_pybytes())


def call(
    location: str, method: str, messages: list[bytes], *, timeout_s: float = 30.0, end: bool = True
) -> Answered:
    """Send protobuf messages to a method and wait for the end of the call.

    Raises:
        NoAnswer: The call has not ended after ``timeout_s``.
    """
    address = urllib.parse.urlsplit(location)
    with socket.create_connection((address.hostname, address.port), timeout=timeout_s) as sock:
        return _Call(sock, timeout_s).run(method, messages, end)


class _Call:
    """One call on a new connection."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._until = time.monotonic() + timeout_s
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="utf-8", validate_inbound_headers=False)
        )
        self._trailers: dict[str, str] = {}
        self._received = bytearray()
        self._over = False

    def run(self, method: str, messages: list[bytes], end: bool) -> Answered:
        self._h2.initiate_connection()
        self._h2.send_headers(
            1,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", SERVICE + method),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ],
        )
        try:
            self._flush()
            for message in messages:
                self._send(b"\0" + struct.pack(">I", len(message)) + message)
            if end and not self._over:
                self._h2.end_stream(1)
                self._flush()
            while not self._over:
                self._receive()
        except (ConnectionError, BrokenPipeError, h2.exceptions.StreamClosedError):
            self._over = True
        return Answered(
            self._trailers.get("grpc-status"),
            urllib.parse.unquote(self._trailers.get("grpc-message", "")),
            len(self._received),
            self._trailers,
        )

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._over:
            room = min(self._h2.local_flow_control_window(1), self._h2.max_outbound_frame_size)
            if room <= 0:
                self._receive()
                continue
            self._h2.send_data(1, bytes(view[:room]))
            view = view[room:]
            self._flush()

    def _flush(self) -> None:
        self._sock.sendall(self._h2.data_to_send())

    def _receive(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise NoAnswer(f"no end of the call; so far {self._trailers}")
        self._sock.settimeout(left)
        try:
            data = self._sock.recv(65536)
        except TimeoutError as exc:
            raise NoAnswer(f"no end of the call; so far {self._trailers}") from exc
        if not data:
            self._over = True
            return
        for event in self._h2.receive_data(data):
            self._take(event)
        self._flush()

    def _take(self, event: object) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self._trailers.update({str(k): str(v) for k, v in event.headers})
        elif isinstance(event, h2.events.DataReceived):
            self._received += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, 1)
        if isinstance(
            event,
            h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated,
        ):
            self._over = True
