"""An HTTP proxy in front of an S3 server: requests fail, hang, or get false answers.

    500, 503    refused, nothing done
    silent      nothing done, no answer
    lost        done, and the connection closed without an answer
    denied      done, answered 500: success told as failure
    false       nothing done, answered 200 without S3's usual content: failure told as success

Other requests pass unchanged. Every lie is detectable. The proxy never sends the exact answer of
a success for a missing object, since a client has to trust its store.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any
from urllib.parse import urlsplit

Odds = dict[str, float]

PROFILES: dict[str, Odds] = {
    "errors": {"500": 0.25, "503": 0.25},
    "away": {"503": 1.0},
    "silent": {"silent": 0.2},
    "lost": {"lost": 0.4},
    "denied": {"denied": 0.5},
    "false": {"false": 0.4},
    "far": {"503": 0.005, "lost": 0.01},
    "all": {"500": 0.07, "503": 0.07, "silent": 0.03, "lost": 0.07, "denied": 0.07, "false": 0.07},
}
"""By profile: the probability of each fault of a request."""

SILENCE_S = 5.0
"""Longer than any client of the campaign waits for its store."""
_HOP = {"connection", "keep-alive", "transfer-encoding"}
_ERRORS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "denied": (500, "InternalError"),
}


class StoreProxy:
    """Runs from its construction to :meth:`close`."""

    def __init__(self, upstream: str, seed: int, delay_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """``delay_s``: the least and the most time that each request takes in addition."""
        self._delay_s = delay_s
        address = urlsplit(upstream)
        assert address.hostname is not None
        assert address.port is not None
        self.upstream = (address.hostname, address.port)
        self.faults: Counter[str] = Counter()
        """The number of requests by fault."""
        self._odds: Odds = {}
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._well = threading.Event()
        proxy = self

        class Handler(_Handler):
            at = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def suffer(self, profile: str) -> None:
        """Inject the faults of this profile."""
        with self._lock:
            self._odds = PROFILES[profile]
            self._well.clear()

    def heal(self) -> None:
        """Stop injecting faults; silent requests end."""
        with self._lock:
            self._odds = {}
            self._well.set()

    def draw(self) -> str | None:
        """Draw the fault of the next request."""
        with self._lock:
            drawn = self._random.random()
            for fault, odds in self._odds.items():
                if drawn < odds:
                    self.faults[fault] += 1
                    return fault
                drawn -= odds
        return None

    def delay(self) -> None:
        """Wait as long as a request to a store at a distance."""
        with self._lock:
            wait_s = self._random.uniform(*self._delay_s)
        if wait_s:
            time.sleep(wait_s)

    def keep_silent(self) -> None:
        """Return when the client has given up, or the store is healed."""
        self._well.wait(SILENCE_S)

    def close(self) -> None:
        """End the proxy; requests in progress are cut off with the process."""
        self.heal()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    at: StoreProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _upstream: http.client.HTTPConnection | None = None

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.at.draw()
        self.at.delay()
        if fault in ("500", "503"):
            self._refuse(fault)
        elif fault == "silent":
            self.at.keep_silent()
            self._hang_up()
        elif fault == "false":
            self._answer(204 if self.command == "DELETE" else 200, [], b"")
        else:
            status, headers, answer = self._pass_on(body)
            if fault == "lost":
                self._hang_up()
            elif fault == "denied":
                self._refuse(fault)
            else:
                self._answer(status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _refuse(self, fault: str) -> None:
        status, code = _ERRORS[fault]
        text = f"<Error><Code>{code}</Code><Message>as the proxy likes it</Message></Error>"
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self._upstream is None:
            self._upstream = http.client.HTTPConnection(*self.at.upstream, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP | {"expect"}}
        try:
            self._upstream.request(self.command, self.path, body, headers)
            answer = self._upstream.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._upstream.close()
            self._upstream = None
            return 503, [], b""
        return answer.status, answer.getheaders(), text

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        names = {name.lower() for name, _ in headers}
        self.send_response_only(status)
        for name, value in headers:
            # The length of an unsent HEAD body is part of the answer.
            if name.lower() not in _HOP and (
                self.command == "HEAD" or name.lower() != "content-length"
            ):
                self.send_header(name, value)
        if self.command != "HEAD" or "content-length" not in names:
            self.send_header("Content-Length", str(len(body)))
        if "date" not in names:
            self.send_header("Date", self.date_time_string())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one_request(self) -> None:
        """Ignore the error of a disconnected client."""
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Discard the log message."""
