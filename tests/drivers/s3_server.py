"""A real S3 server (moto) in its own process, with faults on demand.

    with S3Server.start() as server:
        server.make_bucket("lake")
        store = open_store("s3://lake/prefix", **server.storage_options)
        server.fault("lose_answer", method="PUT", contains=".commit")

The process listens on a free loopback port and ends when the process that started it ends. Its
objects are in memory.

Requests are serialized: moto checks and writes a name in two steps without a lock, where a real
server is atomic, and it answers 500 to a listing that races with a change.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict

Fault = Literal["unavailable", "conflict", "denied", "invalid", "full", "lose_answer", "hang"]
PAGE = 100
"""Page size of a listing. Other servers use 1000 and need as long to fill ten pages."""
# Error responses of S3 servers, exact as far as clients read them.
_ANSWERS = {
    "unavailable": ("503 Slow Down", "SlowDown"),
    "hang": ("503 Slow Down", "SlowDown"),
    "conflict": ("409 Conflict", "ConditionalRequestConflict"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "invalid": ("400 Bad Request", "InvalidArgument"),
    "full": ("507 Insufficient Storage", "XMinioStorageFull"),
}


class Seen(TypedDict):
    """A request that the server has answered."""

    method: str
    target: str  # path and query as sent
    status: int
    sent_bytes: int  # length of the response body


class S3Server:
    """A running server process; made by ``start``."""

    access_key = "test-access-key"
    secret_key = "test-secret-key"

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self._lock = threading.Lock()
        self.url = url

    @classmethod
    def start(cls) -> S3Server:
        """Start a server and return when it answers."""
        # Imported here: the server's own process must not find these folders.
        from tests.drivers.s3_models import share_models

        share_models()
        process = subprocess.Popen(
            # -P: folders next to this file must not shadow modules of the standard library.
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE),
                "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 40),  # objects stay in memory
            },
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.communicate()
            raise RuntimeError(f"the S3 server ended with {process.returncode} before it listened")
        return cls(process, json.loads(line)["url"])

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server's process id, for SIGSTOP and SIGCONT."""
        return self._process.pid

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which ``open_store`` reaches the server."""
        return {
            "endpoint_url": self.url,
            "key": self.access_key,
            "secret": self.secret_key,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same options for a subprocess, as variables that S3 clients read."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def make_bucket(self, name: str) -> None:
        """Create the bucket ``name``."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def fault(self, kind: Fault, *, method: str = "", contains: str = "", times: int = 1) -> None:
        """Make the next ``times`` requests with ``method`` and with ``contains`` in the path fail.

        ``lose_answer``: the request is carried out, then the connection is closed without an
        answer. ``hang``: nothing is done and no answer is sent until ``clear_faults``. All other
        kinds: nothing is done and the error of that kind is returned (503, 409, 403, 400, 507).
        """
        self._ask({"do": "fault", "kind": kind, "method": method, "in": contains, "times": times})

    def clear_faults(self) -> None:
        """Stop injecting faults; hanging requests are answered with 503."""
        self._ask({"do": "clear"})

    def delay(self, seconds: float) -> None:
        """Carry out each further request this much later, as a server at a distance does."""
        self._ask({"do": "delay", "seconds": seconds})

    def requests(self) -> list[Seen]:
        """The last 10,000 requests, oldest first, without those that a fault kept from moto."""
        seen: list[Seen] = self._ask({"do": "requests"})
        return seen

    def _ask(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """End the process immediately; a second call is a no-op."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


# -------------------------------------------------------------------- inside the server's process


class _Faults:
    """The requests that are to fail, shared by the server's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[dict[str, Any]] = []
        self._well = threading.Event()

    def plan(self, fault: dict[str, Any]) -> None:
        with self._lock:
            self._well.clear()
            self._planned.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()
            self._well.set()

    def take(self, method: str, path: str) -> str | None:
        with self._lock:
            for fault in self._planned:
                if fault["method"] in ("", method) and fault["in"] in path and fault["times"] > 0:
                    fault["times"] -= 1
                    return str(fault["kind"])
        return None

    def wait_until_clear(self) -> None:
        self._well.wait()


class _Application:
    """moto's application with fault injection in front, one request at a time."""

    def __init__(self, moto: Callable[..., Iterable[bytes]], faults: _Faults) -> None:
        self._moto = moto
        self._faults = faults
        self._one_at_a_time = threading.Lock()
        self.delay_s = 0.0
        self.seen: deque[Seen] = deque(maxlen=10_000)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        time.sleep(self.delay_s)
        fault = self._faults.take(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if fault == "hang":
            self._faults.wait_until_clear()
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            error = f"<Error><Code>{code}</Code><Message>as asked</Message></Error>".encode()
            start_response(status, [("Content-Type", "application/xml")])
            return [error]
        status, headers, body = self._carried_out(environ)
        self.seen.append(
            Seen(
                method=environ["REQUEST_METHOD"],
                target=environ["RAW_URI"],
                status=int(status.split()[0]),
                sent_bytes=len(body),
            )
        )
        if fault == "lose_answer":
            environ["werkzeug.socket"].shutdown(2)
        start_response(status, headers)
        return [body]

    def _carried_out(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        head: list[Any] = []

        def keep(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            # moto sends the Server header twice; aiohttp in Python's development mode rejects
            # that.
            head[:] = [status, [(name, value) for name, value in headers if name != "server"]]

        # Read before taking the lock: a client that is stopped while it sends must not block
        # others.
        whole = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(whole)
        with self._one_at_a_time:
            body = b"".join(self._moto(environ, keep))
        return head[0], head[1], body


def _obey(commands: TextIO, faults: _Faults, application: _Application) -> None:
    for line in commands:
        message = json.loads(line)
        answer: Any = None
        if message["do"] == "fault":
            faults.plan(message)
        elif message["do"] == "clear":
            faults.clear()
        elif message["do"] == "delay":
            application.delay_s = message["seconds"]
        else:
            answer = list(application.seen)
        print(json.dumps(answer), flush=True)


def _read_in_place(key: type[Any]) -> None:
    """Make moto's objects return their bytes without a copy.

    moto copies a whole object to answer a range request. Parquet readers make many range
    requests, so with files of a hundred megabytes the copies took most of a reader's time.
    """

    def value(self: Any) -> bytes:
        with self.lock:
            return bytes(self._value_buffer._file.getvalue())

    key.value = property(value, key.value.fset)


def _serve() -> None:
    import logging
    import os

    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from moto.s3.models import FakeKey
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _read_in_place(FakeKey)
    faults = _Faults()
    # Not moto's dispatcher, which searches the disk for all services on each request.
    application = _Application(create_backend_app("s3"), faults)
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    _obey(sys.stdin, faults, application)
    os._exit(0)  # the parent process is gone; hanging requests must not keep this one alive


if __name__ == "__main__":
    _serve()
