"""A small real HTTP server with scripted answers, which records its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any
    key: str | None


class Answers:
    """A server's answers, each a status and a body; the last one repeats."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.answers: list[tuple[int, object]] = [(200, {})]
        self.answer: Callable[[Asked], tuple[int, object]] = self._next

    def _next(self, asked: Asked) -> tuple[int, object]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving() -> Iterator[Answers]:
    """Yield a server on a free local port."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(msgspec.json.decode(self.rfile.read(length)))

        def _answer(self, body: Any) -> None:
            asked = Asked(self.command, self.path, body, self.headers.get("Idempotency-Key"))
            answers.asked.append(asked)
            status, said = answers.answer(asked)
            data = said if isinstance(said, bytes) else msgspec.json.encode(said)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield answers
        server.shutdown()
        thread.join(30)
