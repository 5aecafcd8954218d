"""The HTTP server's socket and its end.

Law: the address is bound before anything else, so that a taken port is one clear error and port 0
is known before the first request. Serving ends when the caller's cancel scope does:

    cancelled ── no new connections, idle ones close ── GRACE_S ── the rest is cut ── returned

No client can delay that: hypercorn shields its sends, so a client that does not read is cut by
closing its socket. A connection that fails is logged and takes nothing else with it. One that
idles, or that takes its time to send a request or to take an answer, is closed the same way
(:mod:`ingester.server.http.connections`).

Imports trio: part of the daemon. Uses hypercorn's connection handler
(:mod:`ingester.server.http.http1`), not its runner, because the runner gives no way to the sockets
it has accepted.
"""

import logging
import socket
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ingester.server.http.connections import (
    DEFAULT_LIMITS,
    HttpConnection,
    HttpConnections,
    HttpLimits,
)
from ingester.server.http.http1 import Http1, Turns

log = structlog.get_logger()

# Requests take milliseconds. The whole stop is promised within 2 s.
GRACE_S = 1.0
# Waiting connections: a flood of them must not have a probe's first packet dropped, which it sends
# again a second later.
BACKLOG = 1024
# A peer that takes nothing for so long is dropped by the kernel (Linux), with what it holds here.
STALLED_PEER_MS = 15_000
# A handshake takes two round trips.
HANDSHAKE_S = 10.0
# How often connections are looked for that idle.
LOOK_S = 1.0
HEALTH = "/health/"
_SATURATED = Response(
    b'{"code":"saturated","message":"limits.http_connections: too many answers are under way;'
    b' ask again","retry_after_s":1}',
    503,
    headers={"Retry-After": "1", "Cache-Control": "no-store"},
    media_type="application/json",
)


class ListenError(OSError):
    """The address cannot be listened on; the message says which and what to do."""


async def serve_http(
    app: ASGIApp,
    host: str,
    port: int,
    limits: HttpLimits = DEFAULT_LIMITS,
    *,
    tls: Callable[[], ssl.SSLContext] | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer HTTP until cancelled; report the URL (``http://host:port``) when requests are taken.

    A connection has in ``scope["state"]["client_certificate"]`` when that of its client ends, in
    seconds since 1970, or None where it has shown none; without TLS there is no such entry.

    Args:
        app: what answers; its lifespan hooks are not called.
        host: name or address; empty means every interface.
        port: 0 picks a free port.
        tls: asked for the context of each new connection; None serves without TLS.
        limits: of connections.
        task_status: as ``nursery.start`` gives it.

    Raises:
        ListenError: the port is taken, or the host is none of this machine's.
    """
    sock = await _bind(host, port)
    server = _Server(app, trio.SocketListener(sock), limits, tls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        task_status.started(_url("http" if tls is None else "https", host, sock))
        try:
            await trio.sleep_forever()
        finally:
            server.stop()


async def _bind(host: str, port: int) -> trio.socket.SocketType:
    """Give a listening socket on the first address of ``host``."""
    try:
        found = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as exc:
        raise ListenError(
            exc.errno, f"http.listen: the host {host!r} is not known ({exc.strerror})"
        ) from exc
    family, kind, proto, _, address = found[0]
    sock = trio.socket.socket(family, kind, proto)
    try:
        # A restart must not wait for connections of the last run to leave TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise ListenError(
            exc.errno,
            f"http.listen: cannot listen on {_join(host, port)} ({exc.strerror}); "
            "choose another address with --http HOST:PORT (port 0 picks a free port)",
        ) from exc
    return sock


def _url(scheme: str, host: str, sock: trio.socket.SocketType) -> str:
    bound_host, bound_port = sock.getsockname()[:2]
    return f"{scheme}://{_join(host or bound_host, bound_port)}"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hypercorn_config() -> Config:
    config = Config()
    config.accesslog = None
    # A logger of its own handlers none: it reaches the daemon's log through the root logger.
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_server_header = False
    config.keep_alive_timeout = 15.0
    config.h11_max_incomplete_size = 16 * 1024
    return config


class _Server:
    """Owns the listener and every accepted connection."""

    def __init__(
        self,
        app: ASGIApp,
        listener: trio.SocketListener,
        limits: HttpLimits,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._tls = tls
        self._config = _hypercorn_config()
        self._asked = app
        # hypercorn's types know ASGI only as typed dicts, which no framework uses.
        answer = cast("Any", self._answer)
        self._app = wrap_app(answer, self._config.wsgi_max_body_size, "asgi")
        self._listener = listener
        self._connections = HttpConnections(limits, trio.current_time)
        self._current: ContextVar[HttpConnection] = ContextVar("http connection")
        self._context = WorkerContext(None)
        self._turns = Turns()
        self._stopping = trio.Event()
        self._streams: dict[HttpConnection, trio.SocketStream] = {}

    def stop(self) -> None:
        """Let ``run`` end within a little more than ``GRACE_S``; takes effect at once."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``. Shielded: only ``stop`` ends it, so that answers are finished."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as cutter:
                cutter.start_soon(self._close_overdue)
                async with trio.open_nursery() as connections:
                    await self._accept_until_stopped(connections)
                    await self._context.terminated.set()
                    cutter.start_soon(self._cut, connections.cancel_scope)
                cutter.cancel_scope.cancel()

    async def _accept_until_stopped(self, connections: trio.Nursery) -> None:
        async with self._listener, trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(
                    trio.serve_listeners,
                    self._serve,
                    [self._listener],
                    handler_nursery=connections,
                )
            )
            await self._stopping.wait()
            accepting.cancel_scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = self._let_in(stream)
        self._current.set(connection)
        try:
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_PEER_MS)
            if self._tls is None:
                await self._requests(stream, {})
            else:
                sealed = trio.SSLStream(
                    stream, self._tls(), server_side=True, https_compatible=True
                )
                await self._sealed(sealed, connection.peer)
        except* Exception:
            log.exception("http connection failed", runbook="http-failed")
        finally:
            del self._streams[connection]
            self._connections.close(connection)
            stream.socket.close()

    async def _requests(self, stream: Any, state: dict[str, Any]) -> None:
        await Http1(self._app, self._config, self._context, stream, self._turns).speak(state)

    async def _sealed(self, stream: trio.SSLStream[trio.SocketStream], peer: str) -> None:
        """Answer requests on a connection with TLS, if the client gets so far."""
        try:
            with trio.move_on_after(HANDSHAKE_S) as handshake:
                await self._turns.take(peer)
                await stream.do_handshake()
            if not handshake.cancelled_caught:
                shown = stream.getpeercert()
                end = ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None
                await self._requests(stream, {"client_certificate": end})
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it is no client of ours, or gone
        finally:
            # It refers to itself, with some 40 KB of OpenSSL's, and collections are rare here.
            vars(stream).clear()

    def _let_in(self, stream: trio.SocketStream) -> HttpConnection:
        """Take a connection in, closing another one where there is no room."""
        try:
            peer = str(stream.socket.getpeername()[0])
        except OSError:  # it is gone by now
            peer = ""
        made, leaving = self._connections.open(peer)
        self._streams[made] = stream
        if leaving is not None:
            self._streams[leaving].socket.close()
        return made

    async def _close_overdue(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            for each in self._connections.overdue():
                self._streams[each].socket.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and know of it."""
        connection, is_health = self._current.get(), scope["path"].startswith(HEALTH)
        if not self._connections.answering(connection, is_health):
            await _SATURATED(scope, receive, send)
            return
        try:
            await self._asked(scope, receive, send)
        finally:
            self._connections.answered(connection, is_health)

    async def _cut(self, connections: trio.CancelScope) -> None:
        await trio.sleep(GRACE_S)
        for stream in self._streams.values():
            stream.socket.close()
        connections.cancel()
