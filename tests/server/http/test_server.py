"""The HTTP socket: how it is bound, and that no client delays the server's stop."""

import http.client
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from ingester.server.http.app import MAX_ANSWERS, create_app
from ingester.server.http.server import ListenError
from ingester.server.tls import Certificates, check_certificates
from tests.drivers.certificates import Authority
from tests.drivers.waiting import until
from tests.server.http.serving import IDLE_S, RunningServer, TurnableSource, serving

# More than both socket buffers hold, so that the server blocks in the middle of sending.
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


def test_a_client_that_stops_reading_delays_the_stop_until_the_kernel_drops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def large(_: Request) -> Response:
        return PlainTextResponse(b"x" * LARGE_BYTES)

    monkeypatch.setattr("ingester.server.http.server.STALLED_PEER_S", 1.0)
    server = RunningServer(Starlette(routes=[Route("/large", large)]))
    with socket.create_connection(server.address) as stalled:
        stalled.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stalled.recv(12) == b"HTTP/1.1 200"
        assert server.stop() < 5.0


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


def test_slow_heads_and_silent_connections_are_closed_within_the_idle_time() -> None:
    with serving(TurnableSource()) as server, ExitStack() as held:
        silent, slow = (
            held.enter_context(socket.create_connection(server.address, timeout=10))
            for _ in range(2)
        )
        slow.settimeout(0.1)
        began, closed = time.monotonic(), False
        while not closed:
            assert time.monotonic() - began < 5 * IDLE_S, "bytes now and then do not keep it open"
            try:
                slow.sendall(b"G")
                closed = not slow.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:  # a byte arrived after the close
                closed = True
        assert silent.recv(1) == b""


def test_health_is_answered_beside_as_many_stalled_answers_as_there_may_be() -> None:
    async def large(_: Request) -> Response:
        return PlainTextResponse(b"x" * LARGE_BYTES)

    app = create_app(TurnableSource())
    app.router.routes.append(Route("/large", large))
    server = RunningServer(app)
    with ExitStack() as held:
        for _ in range(MAX_ANSWERS):
            stalled = held.enter_context(socket.create_connection(server.address))
            stalled.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stalled.recv(12) == b"HTTP/1.1 200"
        refused = server.request("/large")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert b'"code":"saturated"' in refused.body
        assert server.request("/health/live").status == 200
    assert server.request("/api/status").status == 200, "closed connections give their places back"
    server.stop()


def is_live(server: RunningServer) -> bool:
    """Whether a new connection is answered; hypercorn's error closes the open ones."""
    with suppress(ConnectionError, http.client.HTTPException):
        return server.request("/health/live").status == 200
    return False


def test_an_error_of_one_connection_inside_hypercorn_leaves_the_port_open() -> None:
    """hypercorn 0.18 raises KeyError on an HTTP/2 DATA frame after the answer has ended."""
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    names = {":method": "GET", ":path": "/health/live", ":scheme": "http", ":authority": "x"}
    client.send_headers(1, list(names.items()))
    with capture_logs() as logs, serving(TurnableSource()) as server:
        with socket.create_connection(server.address, timeout=10) as broken:
            broken.sendall(client.data_to_send())
            ended = False
            while not ended:
                events = client.receive_data(broken.recv(1 << 16))
                ended = any(type(each).__name__ == "StreamEnded" for each in events)
            client.send_data(1, b"more")
            broken.sendall(client.data_to_send())
            with suppress(ConnectionResetError):
                while broken.recv(1 << 16):
                    pass
        until(lambda: is_live(server), "the port to answer again")
    assert [each["runbook"] for each in logs if each["log_level"] == "error"] == ["http-failed"]


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_a_request_for_another_protocol_leaves_the_port_open(upgrade: str) -> None:
    """hypercorn 0.18 fails on bytes after a WebSocket request (issue 225)."""
    wish = (
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        f"Upgrade: {upgrade}\r\n"
        "HTTP2-Settings: AAMAAABk\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nx"
    )
    with serving(TurnableSource()) as server:
        with socket.create_connection(server.address, timeout=10) as asking:
            asking.sendall(wish.encode())
            with suppress(OSError):
                asking.recv(1 << 16)
        until(lambda: is_live(server), "the port to answer again")


def _certificates(authority: Authority, name: str) -> Certificates:
    pair = authority.issue(name)
    return check_certificates(pair.cert.read_bytes(), pair.key.read_bytes(), None)


def test_other_certificates_are_shown_and_no_connection_is_refused_meanwhile(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    first = _certificates(authority, "first")
    server = RunningServer(create_app(TurnableSource()), certificates=first)
    context = ssl.create_default_context(cafile=str(authority.path))

    def shown() -> str:
        with (
            socket.create_connection(server.address, 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sealed,
        ):
            found: Any = sealed.getpeercert()
            return str(found["subject"][0][0][1])

    try:
        assert server.url.startswith("https://")
        assert shown() == "first"
        for name in ("second", "third"):
            server.renew(_certificates(authority, name))
            assert shown() == name
    finally:
        server.stop()
