"""The HTTP port: hypercorn's trio worker on a listening socket that outlives it.

    bound ─▶ hypercorn serves ─▶ stopped: idle connections close, the rest has GRACE_S
                ▲     │
                └─────┘ other certificates, or a connection that failed inside hypercorn

The socket is bound first, so that a taken port is one clear error, and port 0 is known before the
first request. It stays open while hypercorn starts again: new connections wait in its backlog
instead of being refused. ``tests/server/http/test_server.py`` tries all of this.

What hypercorn has no setting for is left to the proxy of ``deploy/haproxy``: the number of
connections, HTTP/2 on a port without TLS, and health checks from clients without a certificate
where ``tls.client_ca`` asks for one.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.types import ASGIApp

from ingester.server.tls import Certificates, pem_files

log = structlog.get_logger(__name__)

GRACE_S = 1.0
"""The time that a stop leaves to answers under way; requests take milliseconds."""
BACKLOG = 1024
"""New connections that wait, so that a probe's first packet is not dropped beside many others."""
STALLED_PEER_S = 5.0
"""The kernel drops a client that reads nothing of its answer for this long (Linux). hypercorn waits
for such a client even when it stops."""
HANDSHAKE_S = 10.0
RETRY_S = 0.1
"""The pause before hypercorn starts again after an error."""


class ListenError(OSError):
    """The address cannot be listened on; the message says which and what to do."""


class HttpListener:
    """Serves an application until it is cancelled. On the loop.

    Args:
        app: an ASGI application.
        host: a name or an address; empty means every interface.
        port: 0 picks a free port.
        idle_s: a connection without a complete request for this long is closed.
        certificates: what TLS is served with; None serves without TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        idle_s: float = 15.0,
        certificates: Certificates | None = None,
    ) -> None:
        self.certificates = certificates
        """Shown to new connections."""
        self.url = ""
        """``http://host:port``, once it listens."""
        # hypercorn's types know ASGI only as typed dicts, which no framework uses.
        self._app = cast("Any", app)
        self._host, self._port, self._idle_s = host, port, idle_s
        self._stop = trio.Event()
        self._serving = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, and report the URL when requests are answered.

        Raises:
            ListenError: the port is taken, or the host is not known.
        """
        with await _bind(self._host, self._port) as sock:
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(self._serve, sock)
                    self.url = self._url(sock)
                    task_status.started(self.url)
                    while True:
                        await self._stop.wait()
                        self._stop = trio.Event()
                        await nursery.start(self._serve, sock)
                        self._serving.set()
                finally:
                    self._stop.set()

    async def renew(self, certificates: Certificates) -> None:
        """Show these certificates to new connections. One call at a time.

        Open connections are answered for ``GRACE_S``, and then closed.
        """
        self.certificates = certificates
        self._serving = trio.Event()
        self._stop.set()
        await self._serving.wait()

    async def _serve(
        self,
        sock: socket.socket,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run hypercorn until a stop is asked for. Shielded, so that answers are finished.

        What fails before the first request can be answered is raised.
        """
        stop = self._stop
        with trio.CancelScope(shield=True):
            while not stop.is_set():
                try:
                    with _config(sock, self._idle_s, self.certificates) as config:
                        async with trio.open_nursery() as nursery:
                            await nursery.start(
                                partial(serve, self._app, config, shutdown_trigger=stop.wait)
                            )
                            task_status.started()
                            task_status = trio.TASK_STATUS_IGNORED
                except Exception:
                    if not self.url:
                        raise
                    # An error in one connection ends them all. Clients connect again.
                    log.exception("http server failed and serves again", runbook="http-failed")
                    await trio.sleep(RETRY_S)

    def _url(self, sock: socket.socket) -> str:
        scheme = "http" if self.certificates is None else "https"
        host, port = sock.getsockname()[:2]
        return f"{scheme}://{_joined(self._host or host, port)}"


@contextmanager
def _config(
    sock: socket.socket, idle_s: float, certificates: Certificates | None
) -> Iterator[Config]:
    config = Config()
    # hypercorn closes the descriptor that it is given.
    config.bind = [f"fd://{os.dup(sock.fileno())}"]
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.setLevel(logging.WARNING)
    config.include_server_header = False
    config.keep_alive_timeout = idle_s
    config.ssl_handshake_timeout = HANDSHAKE_S
    config.graceful_timeout = GRACE_S
    config.alpn_protocols = ["http/1.1"]
    if certificates is None:
        yield config
        return
    with pem_files(certificates) as (cert, key, client_ca):
        config.certfile, config.keyfile = cert, key
        if client_ca is not None:
            config.ca_certs, config.verify_mode = client_ca, ssl.VerifyMode.CERT_REQUIRED
        yield config


async def _bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first address of ``host``."""
    try:
        found = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as exc:
        raise ListenError(
            exc.errno, f"http.listen: the host {host!r} is not known ({exc.strerror})"
        ) from exc
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    try:
        # A restart must not wait for connections of the last run to leave TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted sockets inherit it
            milliseconds = int(STALLED_PEER_S * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise ListenError(
            exc.errno,
            f"http.listen: cannot listen on {_joined(host, port)} ({exc.strerror}); "
            "choose another address with --http HOST:PORT (port 0 picks a free port)",
        ) from exc
    return sock


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
