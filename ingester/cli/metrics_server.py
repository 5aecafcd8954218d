"""``/metrics``, ``/health/live`` and ``/health/ready`` of a command that runs for long.

Law of this file: it answers in threads of its own, which end with the process, few at a time and
each within its time, and asks whoever it tells of for nothing but numbers. It has neither TLS nor
tokens: other machines reach it only where an operator has said so, and on the loopback it answers
under the loopback's names alone.
"""

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ingester.config.addresses import is_loopback, says_loopback

from .exits import USAGE, CommandFailed

MOST_CONNECTIONS = 64
"""So many connections are open at a time, as each has a thread; further ones are closed."""
SILENT_S = 10.0
"""The time within which a client has to send its request and to take the answer."""
Unready = Callable[[], str]
"""What is not ready yet, as text; nothing where all is."""


class MetricsAddress(NamedTuple):
    """Where it listens, as it was asked for."""

    option: str
    """The name of the option, for messages."""
    listen: str
    """``HOST:PORT``; port 0 picks a free one."""
    insecure: bool
    """Whether other machines may reach it."""


class MetricsServer:
    """Answers until it is closed.

    Raises:
        CommandFailed: the address is none, or is taken, or is reached from other machines.
    """

    def __init__(
        self,
        address: MetricsAddress,
        registry: CollectorRegistry,
        unready: Unready,
        silent_s: float = SILENT_S,
    ) -> None:
        option, listen, insecure = address
        host, colon, port = listen.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
            raise CommandFailed(f"{option} {listen!r} is not HOST:PORT", USAGE)
        local = is_loopback(host)
        if not (local or insecure):
            raise CommandFailed(
                f"{option} {listen} can be reached from other machines, without TLS and tokens:"
                " listen on 127.0.0.1, or say --insecure where the network lets nobody else in",
                USAGE,
            )
        handler = type(
            "Handler",
            (_Handler,),
            {
                "registry": registry,
                "unready": staticmethod(unready),
                "local": local,
            },
        )
        try:
            self._server = _Server(silent_s, (host.strip("[]"), int(port)), handler)
        except OSError as exc:
            raise CommandFailed(f"{option} {listen}: {exc.strerror or exc}") from exc
        self.url = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, silent_s: float, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._silent_s = silent_s
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there can be no thread more
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer within the time, and give the place back."""
        # Not by the socket's own time, which begins anew with every byte.
        late = threading.Timer(self._silent_s, _cut, (request,))
        late.daemon = True
        try:
            late.start()
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who has gone, or sends what is no request, is no news."""


def _cut(request: socket.socket) -> None:
    """End a connection, whoever waits for it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    unready: Unready
    local: bool

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        host = re.sub(r":[0-9]+$", "", self.headers.get("Host", ""))
        if self.local and host and not says_loopback(host):
            self._answer(421, b"this is not the host that was asked for\n")
        elif path == "/metrics":
            self._answer(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif path == "/health/live":
            self._answer(200, b"live\n")
        elif path == "/health/ready":
            late = self.unready()
            self._answer(503 if late else 200, (late or "ready\n").encode())
        else:
            self._answer(404, b"/metrics, /health/live, /health/ready\n")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a scrape is no news."""
