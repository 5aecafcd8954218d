"""What a client may send before it has acknowledged the daemon's settings, or if it never does."""

from __future__ import annotations

import platform
import socket
import struct
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import hpack
import pytest

from ingester.config.settings import LimitsSettings
from ingester.server.flight.reception import ASKED_MS
from tests.drivers.daemon import Daemon

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="known on x86-64 only")

DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
MAX_STREAMS, MAX_HEAD = 3, 6
HEAD_BYTES = 16 << 10
EMPTY_MESSAGE = bytes(5)
EMPTY_FIELD = bytes([0x80 | 15])
"""``accept-charset`` with no value, of HPACK's own table: a byte that is counted as 46."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Kind, stream and payload of what the daemon sends; nothing of it is acknowledged."""
    with connection.makefile("rb") as received:
        while head := received.read(9):
            payload = received.read(int.from_bytes(head[:3], "big"))
            yield head[3], int.from_bytes(head[5:], "big"), payload


def connected(daemon: Daemon) -> socket.socket:
    address = urllib.parse.urlsplit(daemon.flight)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 0), 20)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    return connection


def head(fields: int) -> bytes:
    """A head of a call with so many empty fields beside what it needs."""
    needed = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/arrow.flight.protocol.FlightService/ListActions"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    return bytes(hpack.Encoder().encode(needed)) + EMPTY_FIELD * fields


@pytest.mark.parametrize("fields", [10, 400, 40_000])
def test_a_head_is_bounded_before_the_settings_are_acknowledged(
    shared: Daemon, fields: int
) -> None:
    block = head(fields)
    parts = [block[at : at + HEAD_BYTES] for at in range(0, len(block), HEAD_BYTES)]
    with connected(shared) as connection:
        for number, part in enumerate(parts):
            flags = END_HEADERS if number == len(parts) - 1 else 0
            kind = CONTINUATION if number else HEADERS
            connection.sendall(frame(kind, flags, 1, part))
        connection.sendall(frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
        told = next(payload for kind, _, payload in frames(connection) if kind == HEADERS)
    answer: dict[Any, Any] = dict(hpack.Decoder().decode(told))
    is_refused = answer.get("grpc-status") == "8" and f"vs. {HEAD_BYTES}" in answer["grpc-message"]
    assert is_refused == (fields > 300), answer


def test_a_connection_has_as_many_calls_as_there_may_be_in_all(shared: Daemon) -> None:
    with connected(shared) as connection:
        sent = next(payload for kind, _, payload in frames(connection) if kind == SETTINGS)
    settings = dict(struct.iter_unpack(">HI", sent))
    assert settings[MAX_STREAMS] == LimitsSettings().calls
    assert settings[MAX_HEAD] == HEAD_BYTES


def test_who_asks_whether_the_daemon_is_there_stays_and_who_floods_does_not(
    shared: Daemon,
) -> None:
    def is_answered(pause_s: float) -> bool:
        """Whether six pings are, beside a call that is quiet: the fifth ended the connection."""
        with connected(shared) as connection, suppress(OSError):
            connection.sendall(frame(HEADERS, END_HEADERS, 1, head(0)))
            received = frames(connection)
            for number in range(6):
                ping = bytes([number + 1] * 8)
                connection.sendall(frame(PING, 0, 0, ping))
                if not any(payload == ping for _, _, payload in received):
                    return False
                time.sleep(pause_s)
            return True
        return False

    assert is_answered(1.1 * ASKED_MS / 1000)
    assert not is_answered(0)


def test_nothing_is_told_that_is_not_bounded(shared: Daemon) -> None:
    assert "not bounded" not in shared.stderr_file.read_text()
