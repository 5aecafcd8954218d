"""InfluxDB 1.x: line protocol over HTTP, a request per batch, an fsync of the log per write.

The server answers 204 when the batch is in its write-ahead log, synced (``wal-fsync-delay =
"0s"``), and in its cache. Requests are encoded before the clock starts and use one connection
per writer. A point replaces an earlier one with the same time and tags, so the server has fewer
rows than it acknowledged once a writer repeats its batches.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa

from tests.bench.peers.installing import Installation
from tests.bench.peers.peer import Peer, Promise
from tests.bench.peers.server import Server

DATABASE = "bench"
_CONFIGURATION = """
reporting-disabled = true
bind-address = "127.0.0.1:0"
[meta]
  dir = "{folder}/meta"
  logging-enabled = false
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
  wal-fsync-delay = "0s"
  index-version = "inmem"
  query-log-enabled = false
  trace-logging-enabled = false
  # Memory, not refusals; written to files seldom: not within a burst.
  cache-max-memory-size = 0
  cache-snapshot-memory-size = "1g"
  max-series-per-database = 0
  max-values-per-tag = 0
[coordinator]
  write-timeout = "60s"
[monitor]
  store-enabled = false
[subscriber]
  enabled = false
[continuous_queries]
  enabled = false
[retention]
  enabled = false
[shard-precreation]
  enabled = false
[http]
  bind-address = "127.0.0.1:0"
  auth-enabled = false
  log-enabled = false
  write-tracing = false
  pprof-enabled = false
  max-body-size = 0
"""


@contextmanager
def serve(folder: Path, installation: Installation) -> Iterator[str]:
    """Run a server; yields ``host:port``."""
    program = installation.debian("influxdb", "influxd", "usr/bin/influxd")
    configuration = folder / "influxdb.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder.resolve()))
    command: list[str | Path] = [program.path, "-config", configuration.resolve()]
    listening = r"Listening on HTTP.*addr=127\.0\.0\.1:(\d+)"
    with Server(command, listening, environment=program.environment) as server:
        assert server.ready is not None
        yield f"127.0.0.1:{server.ready[1]}"


class Endpoint:
    """The server at an address."""

    def __init__(self, address: str) -> None:
        self._address = address
        connection = HTTPConnection(address)
        connection.request("POST", "/query?" + urlencode({"q": f"CREATE DATABASE {DATABASE}"}))
        answer = connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200 or "error" in body["results"][0]:
            raise RuntimeError(f"{answer.status}: {body}")
        self.version = str(answer.getheader("X-Influxdb-Version"))
        connection.close()

    def create(self, table: str) -> None:
        """No-op: the first write creates the measurement."""

    def settle(self) -> None:
        """No-op: the server writes its files in the background."""

    def writer(self, table: str) -> Requests:
        """Return a writer with a persistent connection."""
        return Requests(self._address, table)


class Requests:
    """Sends prepared requests, with just enough HTTP to read the answers."""

    def __init__(self, address: str, table: str) -> None:
        self._address = address
        self._table = table
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return the whole request: head and lines, times in microseconds."""
        times, *others = batch.columns
        columns = [times.view(pa.int64()).to_pylist(), *(each.to_pylist() for each in others)]
        body = "\n".join(
            f"{self._table},host={host},region={region}"
            f" load={load!r},temperature={temperature!r} {time}"
            for time, host, region, load, temperature in zip(*columns, strict=True)
        ).encode()
        head = (
            f"POST /write?db={DATABASE}&precision=u HTTP/1.1\r\nHost: {self._address}\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def write(self, encoded: bytes) -> None:
        """Send one request; only status 204, which has no body, acknowledges it."""
        self._socket.sendall(encoded)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            part = self._socket.recv(65_536)
            answer += part
            if not part or not answer.startswith(b"HTTP/1.1 204 "[: len(answer)]):
                raise RuntimeError(f"InfluxDB answered {answer.decode(errors='replace')!r}")

    def close(self) -> None:
        self._socket.close()


PEER = Peer(
    name="InfluxDB",
    promise=Promise(
        "in its write-ahead log, fsynced per write", True, "to all, at acknowledgement"
    ),
    open=Endpoint,
    serve=serve,
    processes=4,
)
