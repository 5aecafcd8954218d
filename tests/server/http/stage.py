"""The operator's page in a real browser, served with any status that a test sets.

    with Stage() as stage, Browser.start() as browser, browser.tab() as tab:
        stage.answers["/api/status"] = status
        tab.open(stage.url)

The page has its real security policy, so violations show up here. A stage's status may lack
fields, as an older daemon's does.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ingester.server.http.page import assemble


class Stage:
    """A server of the page and of answers by path; queries are ignored."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.token: str | None = None
        """The required token; None if no token is required."""
        self.asked: list[str] = []
        stage = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stage.answer(self)

            def log_message(self, *_: Any) -> None:
                """Suppress the request log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Stage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server; may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(10)
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request, in a thread of its own."""
        page, policy = assemble()
        if request.path == "/":
            return _send(request, 200, page, {"Content-Security-Policy": policy})
        self.asked.append(request.path)
        bearer = f"Bearer {self.token}"
        if self.token is not None and request.headers.get("Authorization") != bearer:
            said = {"code": "unauthenticated", "message": "the token is not known here"}
            return _send(request, 401, json.dumps(said).encode())
        told = self.answers.get(urlsplit(request.path).path)
        if told is None:
            return _send(request, 404, b'{"code": "not_found", "message": "no such path"}')
        return _send(request, 200, json.dumps(told).encode())


def _send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    is_page = headers is not None
    request.send_header("Content-Type", "text/html" if is_page else "application/json")
    request.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
