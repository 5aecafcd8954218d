"""``/metrics``, ``/health/live`` and ``/health/ready`` of a command that keeps running.

Served by prometheus_client and the standard library's WSGI server, in daemon threads. There is
neither TLS nor tokens: other machines reach it only with ``--insecure``, and on the loopback it
answers only requests for the loopback's names. It does not limit connections; a silent one is
closed after ``SILENT_S``.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from ingester.config.addresses import is_loopback, says_loopback

from .exits import USAGE, CommandFailed

SILENT_S = 10.0
"""A connection on which nothing is sent or read for this time is closed."""
Unready = Callable[[], str]
"""Returns what is not ready yet; an empty text if all is."""
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class MetricsAddress(NamedTuple):
    """The address to listen on, and the option that named it."""

    option: str
    """The option is named in error messages."""
    listen: str
    """``HOST:PORT``; port 0 picks a free one."""
    insecure: bool
    """Whether other machines may reach it."""


class MetricsServer:
    """Answers until it is closed.

    Raises:
        CommandFailed: the address is malformed, taken, or reached from other machines.
    """

    def __init__(
        self, address: MetricsAddress, registry: CollectorRegistry, unready: Unready
    ) -> None:
        option, listen, insecure = address
        host, colon, port = listen.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
            raise CommandFailed(f"{option} {listen!r} is not HOST:PORT", USAGE)
        local = is_loopback(host)
        if not (local or insecure):
            raise CommandFailed(
                f"{option} {listen} can be reached from other machines, without TLS and tokens:"
                " listen on 127.0.0.1, or pass --insecure on a closed network",
                USAGE,
            )
        app = _app(registry, unready, local)
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host.strip("[]"), int(port), app, kind, _Handler)
        except OSError as exc:
            raise CommandFailed(f"{option} {listen}: {exc.strerror or exc}") from exc
        self.url = f"http://{host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _app(registry: CollectorRegistry, unready: Unready, local: bool) -> WSGIApplication:
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        host = re.sub(r":[0-9]+$", "", environ.get("HTTP_HOST", ""))
        if local and host and not says_loopback(host):
            return _text(start, "421 Misdirected Request", "this host name is not served here\n")
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start)
            return found
        if path == "/health/live":
            return _text(start, "200 OK", "live\n")
        if path == "/health/ready":
            late = unready()
            return _text(start, "503 Service Unavailable" if late else "200 OK", late or "ready\n")
        return _text(start, "404 Not Found", "/metrics, /health/live, /health/ready\n")

    return answer


def _text(start: StartResponse, status: str, body: str) -> Iterable[bytes]:
    data = body.encode()
    start(status, [_TEXT, ("Content-Length", str(len(data)))])
    return [data]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log it: a client went away, or sent no request."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
