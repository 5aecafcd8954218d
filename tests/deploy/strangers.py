"""Raw connections and HTTP/2 frames that an attacker can send to a gRPC port."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import hpack

from tests.drivers.haproxy import Proxy

STRANGER = "127.0.0.77"
"""The address that attacks come from; ordinary clients come from 127.0.0.1."""
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 8, 9,
)  # fmt: skip
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_FIELD = bytes([0x80 | 15])
"""``accept-charset`` without a value, from HPACK's static table: one byte expands to 46."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    length = struct.pack(">I", len(payload))[1:]
    return length + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def head(method: str = "ListActions", *more: tuple[str, str]) -> bytes:
    """Return the header block of a Flight call, compressed without a dynamic table."""
    fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", f"/arrow.flight.protocol.FlightService/{method}"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]
    return bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*each) for each in fields]))


def connected(proxy: Proxy, url: str, source: str = STRANGER) -> socket.socket:
    """Return a connection without TLS."""
    return socket.create_connection(proxy.address(url), 10, source_address=(source, 0))


def sealed(proxy: Proxy, url: str, source: str = STRANGER, alpn: str = "h2") -> ssl.SSLSocket:
    """Return a connection with TLS."""
    context = ssl.create_default_context(cafile=str(proxy.authority.path))
    context.set_alpn_protocols([alpn])
    plain = connected(proxy, url, source)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def http2(proxy: Proxy, source: str = STRANGER) -> ssl.SSLSocket:
    """Return an HTTP/2 connection to the gRPC port, with its preface sent."""
    opened = sealed(proxy, proxy.flight, source)
    opened.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return opened


def is_closed(connection: socket.socket, within_s: float) -> bool:
    """Return whether the server closes the connection in time, whatever it sends first."""
    deadline = time.monotonic() + within_s
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not connection.recv(1 << 16):
                return True
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        return True
    return False


def frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, stream and payload of each received frame."""
    with connection.makefile("rb") as received:
        while start := received.read(9):
            payload = received.read(int.from_bytes(start[:3], "big"))
            yield start[3], int.from_bytes(start[5:], "big"), payload


def _resets(reset: int, payload: bytes) -> Callable[[], Iterator[bytes]]:
    """Return a flood of calls, each followed by a frame that ends it."""

    def pieces() -> Iterator[bytes]:
        block = head()
        for first in range(1, 1 << 30, 200):
            yield b"".join(
                frame(HEADERS, END_HEADERS, stream, block) + frame(reset, 0, stream, payload)
                for stream in range(first, first + 200, 2)
            )

    return pieces


def _calls() -> Iterator[bytes]:
    """Yield calls that never end, more than a connection may have."""
    block = head("DoPut")
    for first in range(1, 1 << 30, 200):
        yield b"".join(
            frame(HEADERS, END_HEADERS, stream, block) for stream in range(first, first + 200, 2)
        )


def _again(piece: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        while True:
            yield piece * 500

    return pieces


def _continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, head())
    while True:
        yield frame(CONTINUATION, 0, 1, b"") * 500


def _empty_data() -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, head("DoPut"))
    while True:
        yield frame(DATA, 0, 1) * 500


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "rapid resets": _resets(RST_STREAM, b"\0\0\0\x08"),
    # A window update of zero makes the proxy reset the call itself.
    "resets that it makes": _resets(WINDOW_UPDATE, bytes(4)),
    "calls without end": _calls,
    "pings": _again(frame(PING, 0, 0, b"12345678")),
    "settings": _again(frame(SETTINGS, 0, 0, b"\x00\x04\x00\x01\x00\x00")),
    "window updates": _again(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01")),
    "priorities": _again(frame(PRIORITY, 0, 5, b"\0\0\0\0\x10")),
    "unknown frames": _again(frame(0x77, 0, 0)),
    "continuations": _continuations,
    "empty data": _empty_data,
}
"""The bytes sent after the preface, in pieces."""


def flood(proxy: Proxy, name: str, over: Callable[[], bool]) -> int:
    """Send a flood until the time is over, reconnecting, and return the number of connections."""
    opened = 0
    while not over():
        with suppress(OSError), http2(proxy) as connection:
            opened += 1
            connection.settimeout(0.2)
            for piece in FLOODS[name]():
                if over():
                    break
                with suppress(TimeoutError, ssl.SSLWantReadError):
                    connection.sendall(piece)
    return opened
