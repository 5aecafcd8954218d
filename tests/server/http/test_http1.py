"""What is spoken on a connection of the HTTP port, and whose turn it is."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest
import trio
from structlog.testing import capture_logs

from ingester.server.http.http1 import Turns
from tests.server.http.serving import RunningServer, TurnableSource, serving

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING = b"\x00\x00\x08\x06\x00" + struct.pack(">I", 0) + b"12345678"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def answer(server: RunningServer, sent: bytes) -> bytes:
    """What comes on a connection before it is closed, by a client that says no more than this."""
    found = b""
    # An end with bytes that nobody has read is a reset.
    with socket.create_connection(server.address, timeout=10) as client, suppress(OSError):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(1 << 16):
            found += data
    return found


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (PREFACE + PING * 100, 505),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20, 413),
        (GET + b"Content-Length: 100\r\n\r\n" + b"x" * 100, 413),
        (GET + b"a: b\r\n" * 300 + b"\r\n", 431),
    ],
)
def test_http_2_bodies_and_endless_heads_are_refused_and_what_follows_is_not_looked_at(
    sent: bytes, status: int
) -> None:
    source = TurnableSource()
    with serving(source) as server:
        told = answer(server, sent + GET + b"\r\n")
    assert told.startswith(b"HTTP/1.1 %d " % status)
    assert told.count(b"date: ") == 1, "the connection ends with it"
    assert b'{"code":"invalid","message":"' in told
    assert not source.answers, "no handler has seen it"


@pytest.mark.parametrize("wish", [H2C, WEBSOCKET])
def test_a_wish_for_another_protocol_is_left_unheard(wish: bytes) -> None:
    with serving(TurnableSource()) as server:
        told = answer(server, GET + wish + GET + b"Content-Length: 0\r\n\r\n")
    assert told.count(b"HTTP/1.1 200 ") == 2, "both requests are answered as they stand"
    assert b"101" not in told
    assert b"upgrade" not in told.lower()


def test_a_refusal_of_head_has_no_body_and_fails_nowhere() -> None:
    with capture_logs() as logs, serving(TurnableSource()) as server:
        told = answer(server, GET.replace(b"GET", b"HEAD") + b"Content-Length: 1\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 413 ")
    assert told.endswith(b"\r\n\r\n")
    assert logs == []


def test_what_comes_behind_the_last_request_fails_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection is closed for it while the answer is sent."""
    with capture_logs() as logs, serving(TurnableSource()) as server:
        for _ in range(100):
            answer(server, GET + b"Connection: close\r\n\r\nGET")
    assert [each for each in logs if each["log_level"] == "error"] == []
    assert caplog.records == [], "what hypercorn says"


def test_a_connection_that_its_client_ends_is_closed_at_once() -> None:
    with (
        serving(TurnableSource()) as server,
        # Less than the time that a quiet connection has.
        socket.create_connection(server.address, timeout=10) as client,
    ):
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_lines_count_for_their_own_request_however_it_comes() -> None:
    """Each end of a head comes by itself, as from a client that writes line by line."""
    head = GET + b"a: b\r\n" * 20

    def read(client: socket.socket) -> bytes:
        found = b""
        while not found.endswith(b"\r\n\r\n"):  # the answers to HEAD have no body
            data = client.recv(1 << 16)
            assert data, found
            found += data
        return found

    with (
        serving(TurnableSource()) as server,
        socket.create_connection(server.address, timeout=10) as slow,
        socket.create_connection(server.address, timeout=10) as other,
    ):
        for _ in range(20):
            slow.sendall(head.replace(b"GET", b"HEAD"))
            other.sendall(GET.replace(b"GET", b"HEAD") + b"\r\n")
            assert read(other).startswith(b"HTTP/1.1 200 ")  # by now the head was read
            slow.sendall(b"\r\n")
            assert read(slow).startswith(b"HTTP/1.1 200 ")


def test_turns_go_to_the_address_that_has_had_least() -> None:
    turns, had = Turns(), list[str]()

    async def ask(peer: str, times: int) -> None:
        for _ in range(times):
            await turns.take(peer)
            had.append(peer)

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask, "flood", 20)
            while len(had) < 100:
                await trio.lowlevel.checkpoint()
            before = len(had)
            await ask("probe", 3)
            assert len(had) - before <= 9, "two of the flood's between two of the probe's"

    trio.run(both)
    assert (had.count("flood"), had.count("probe")) == (1000, 3)


def test_a_turn_that_is_given_up_is_anothers() -> None:
    async def give_up() -> None:
        turns = Turns()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(turns.take, "a")
            with trio.move_on_after(0):
                await turns.take("b")
        with trio.fail_after(1):
            await turns.take("c")

    trio.run(give_up)
