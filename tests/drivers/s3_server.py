"""A real S3 server in a process of its own (moto's), and faults that it shows on demand.

    with S3Server.start() as server:
        server.make_bucket("lake")
        store = open_store("s3://lake/prefix", **server.storage_options)
        server.fault("lose_answer", method="PUT", contains=".commit")

The process listens on a free loopback port and ends with the one that started it, however that
ends. What it holds is in its memory and goes with it.

moto looks whether a name is taken and writes afterwards, without a lock; a real server does both
in one step. It also answers 500 to who lists what another request changes. So requests go through
it one at a time here.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict

Fault = Literal["unavailable", "conflict", "denied", "invalid", "full", "lose_answer", "hang"]
PAGE = 100
"""Names in one answer to who lists; other servers have 1000, and take as long to fill ten."""
# What S3 servers answer, byte for byte as far as clients look at it.
_ANSWERS = {
    "unavailable": ("503 Slow Down", "SlowDown"),
    "hang": ("503 Slow Down", "SlowDown"),
    "conflict": ("409 Conflict", "ConditionalRequestConflict"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "invalid": ("400 Bad Request", "InvalidArgument"),
    "full": ("507 Insufficient Storage", "XMinioStorageFull"),
}


class Seen(TypedDict):
    """One request that the server has answered."""

    method: str
    target: str  # path and query as sent
    status: int
    sent_bytes: int  # of the answer's body


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
        """A server that answers by the time this returns."""
        # Not above: the server's own process must not find these folders.
        from tests.drivers.s3_models import share_models

        share_models()
        process = subprocess.Popen(
            # -P: the folders beside this file must not hide modules of the standard library.
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE),
                "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 40),  # objects are in memory alone
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
        """The server's process id: SIGSTOP makes it silent, SIGCONT brings it back."""
        return self._process.pid

    @property
    def storage_options(self) -> dict[str, Any]:
        """What ``open_store`` needs to reach it."""
        return {
            "endpoint_url": self.url,
            "key": self.access_key,
            "secret": self.secret_key,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for a subprocess, as the variables that S3 clients read."""
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
        """Let the next ``times`` requests fail that have ``method`` and ``contains`` in the path.

        ``lose_answer``: the request is carried out, then the connection is closed without an
        answer. ``hang``: nothing done and no answer, until ``clear_faults``. All others: nothing
        done, and the error of that kind is answered (503, 409, 403, 400, 507).
        """
        self._ask({"do": "fault", "kind": kind, "method": method, "in": contains, "times": times})

    def clear_faults(self) -> None:
        """Be well again; requests that hang are answered with 503."""
        self._ask({"do": "clear"})

    def requests(self) -> list[Seen]:
        """The last 10,000 requests, oldest first, without those a fault kept from moto."""
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
        """End the process at once; doing it twice is fine."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


# -------------------------------------------------------------------- inside the server's process


class _Faults:
    """Which requests are to fail. Threads of the server share it."""

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
    """moto's application with faults in front, and one request at a time."""

    def __init__(self, moto: Callable[..., Iterable[bytes]], faults: _Faults) -> None:
        self._moto = moto
        self._faults = faults
        self._one_at_a_time = threading.Lock()
        self.seen: deque[Seen] = deque(maxlen=10_000)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
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
            # moto names itself twice; in Python's development mode aiohttp refuses that.
            head[:] = [status, [(name, value) for name, value in headers if name != "server"]]

        # Before its turn: a client that is stopped while it sends must not hold up the others.
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
        else:
            answer = list(application.seen)
        print(json.dumps(answer), flush=True)


def _read_in_place(key: type[Any]) -> None:
    """Have moto's objects give their bytes as they are.

    It copies all of an object to answer for a range of it. Parquet is read by ranges: with files of
    a hundred megabytes most of the time of whoever read was that.
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
    # Not moto's dispatcher, which looks for all of its services on the disk for each request.
    application = _Application(create_backend_app("s3"), faults)
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    _obey(sys.stdin, faults, application)
    os._exit(0)  # whoever started it is gone; requests that hang must not keep it


if __name__ == "__main__":
    _serve()
