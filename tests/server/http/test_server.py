"""The socket: how it is bound, and that no client keeps the server from stopping."""

import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ingester.server.http.app import create_app
from ingester.server.http.server import ListenError
from tests.server.http.serving import RunningServer, TurnableSource, serving

# More than the buffers of both sockets take, so that the server is left in the middle of sending.
LARGE_BYTES = 64 << 20


def test_port_0_gives_a_free_port_and_names_it() -> None:
    with serving(TurnableSource()) as first, serving(TurnableSource()) as second:
        assert first.url.startswith("http://127.0.0.1:")
        assert first.address[1] != second.address[1]
        assert first.request("/health/live").status == second.request("/health/live").status == 200


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*--http"):
            RunningServer(create_app(TurnableSource()), port=port)


def test_an_unknown_host_is_a_clear_error() -> None:
    with pytest.raises(ListenError, match=r"the host 'no such host' is not known"):
        RunningServer(create_app(TurnableSource()), host="no such host")


def test_the_port_is_free_again_at_once_after_a_stop() -> None:
    with serving(TurnableSource()) as first:
        _, port = first.address
        assert first.request("/health/live").status == 200
    again = RunningServer(create_app(TurnableSource()), port=port)
    try:
        assert again.request("/health/live").status == 200
    finally:
        again.stop()


def test_ipv6_addresses_are_written_in_brackets() -> None:
    try:
        server = RunningServer(create_app(TurnableSource()), host="::1")
    except ListenError:
        pytest.skip("this machine has no IPv6")
    try:
        assert server.url.startswith("http://[::1]:")
        assert server.request("/health/live").status == 200
    finally:
        server.stop()


def test_an_idle_connection_does_not_delay_the_stop() -> None:
    with serving(TurnableSource()) as server, socket.create_connection(server.address) as idle:
        idle.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        assert server.stop() < 1.0


def test_a_client_that_stops_reading_does_not_delay_the_stop() -> None:
    async def large(_: Request) -> Response:
        return PlainTextResponse(b"x" * LARGE_BYTES)

    server = RunningServer(Starlette(routes=[Route("/large", large)]))
    with socket.create_connection(server.address) as stalled:
        stalled.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stalled.recv(12) == b"HTTP/1.1 200"
        assert server.stop() < 2.0


def test_an_answer_under_way_is_finished_by_the_stop() -> None:
    async def large(_: Request) -> Response:
        return PlainTextResponse(b"x" * LARGE_BYTES)

    server = RunningServer(Starlette(routes=[Route("/large", large)]))
    with socket.create_connection(server.address) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = len(client.recv(1))
        server.begin_stop()
        while part := client.recv(1 << 20):
            received += len(part)
    assert received > LARGE_BYTES
    assert server.stop() < 2.0


def test_a_broken_request_takes_nothing_else_with_it() -> None:
    with serving(TurnableSource()) as server:
        with socket.create_connection(server.address) as broken:
            broken.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
            broken.recv(4096)
        with socket.create_connection(server.address) as gone:
            gone.sendall(b"GET /api/status HTTP/1.1\r\nHost: x\r\nContent-Le")
        assert server.request("/health/live").status == 200
