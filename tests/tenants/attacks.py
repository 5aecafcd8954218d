"""The hostile tenant's attacks, by name: each call is one attempt.

An attempt ends by itself, answered or refused, and reports which. It may use the hostile
tenant's own token freely: the daemon may refuse it but must survive it.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202eevil\r\n"
OTHERS = ("alice", "bob")


@dataclass
class Hostile:
    """The resources of an attempt.

    Attributes:
        location: Flight address with its scheme.
        http: URL of the HTTP port.
        ca: PEM certificate of the daemon's CA; empty without TLS.
        token: The hostile tenant's own; empty if the daemon requires none.
    """

    name: str
    location: str
    http: str
    ca: bytes
    token: str
    random: Random
    kept: list[Any] = field(default_factory=list)
    """Connections that are left open."""

    def client(self) -> fl.FlightClient:
        """Make a client without the safeguards of our own library."""
        options = {"tls_root_certs": self.ca} if self.ca else {}
        return fl.connect(self.location, **options)

    def options(self, token: str | None = None, **more: Any) -> fl.FlightCallOptions:
        """Make the options of a call, with the own token or another."""
        bearer = self.token if token is None else token
        headers = [(b"authorization", f"Bearer {bearer}".encode())] if bearer else []
        return fl.FlightCallOptions(timeout=20.0, headers=headers, **more)

    def address(self, url: str) -> tuple[str, int]:
        """Return host and port of a URL."""
        host, _, port = url.rpartition("://")[2].rstrip("/").rpartition(":")
        return host, int(port)

    def put(self, namespace: str, table: str, *batches: pa.RecordBatch, **more: Any) -> None:
        """Write batches, and wait for each answer."""
        with self.client() as client:
            descriptor = fl.FlightDescriptor.for_path(namespace, table)
            writer, reader = client.do_put(descriptor, batches[0].schema, self.options(**more))
            try:
                for batch in batches:
                    writer.write_batch(batch)
                    reader.read()
            except BaseException:
                with suppress(Exception):
                    writer.close()
                raise
            writer.close()

    def get(self, ticket: dict[str, Any], *, read: bool = True, token: str | None = None) -> int:
        """Query, and return the number of rows; without ``read`` take nothing of the answer."""
        with self.client() as client:
            stream = client.do_get(fl.Ticket(json.dumps(ticket)), self.options(token))
            if not read:
                time.sleep(1.0)
                return 0
            return int(stream.read_all().num_rows)

    def act(self, name: str, body: dict[str, Any], *, token: str | None = None) -> list[bytes]:
        """Call an action."""
        with self.client() as client:
            action = fl.Action(name, json.dumps(body).encode())
            return [
                each.body.to_pybytes() for each in client.do_action(action, self.options(token))
            ]


class NotRefused(AssertionError):
    """Raised when a request that must be refused was answered."""


def _wide(hostile: Hostile) -> None:
    """Ten thousand columns at once, different ones each time."""
    names = [f"c{hostile.random.randrange(10**9)}_{n}" for n in range(10_000)]
    batch = pa.record_batch([pa.array([1])] * len(names), names=names)
    hostile.put(hostile.name, "wide", batch)


def _partitions(hostile: Hostile) -> None:
    """A flood of partitions: each row has its own."""
    schema = pa.schema([("day", pa.string()), ("v", pa.int64())])
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    table = {
        "namespace": hostile.name,
        "table": "flood",
        "schema": text,
        "partition_by": ["identity(day)"],
    }
    hostile.act("create_table", table)
    first = hostile.random.randrange(10**9)
    rows = hostile.random.choice([900, 9_000, 20_000])
    days = [f"d{first + n}" for n in range(rows)]
    batch = pa.record_batch([days, np.arange(rows)], names=["day", "v"])
    hostile.put(hostile.name, "flood", batch)


def _filter(hostile: Hostile) -> None:
    """Filters with as many alternatives as are accepted, and with more."""
    rows = _table_of_rows(hostile)
    some = hostile.random.choice([1_000, 20_000, 50_000, 100_000])
    hostile.get(rows | {"filter": [[["host", "=", f"h{n}"], ["v", ">", n]] for n in range(some)]})


def _bomb(hostile: Hostile) -> None:
    """A few kilobytes that expand to gigabytes: compressed zeros, and dictionaries of them."""
    zeros = pa.array(np.zeros(64 << 20, np.int64))
    batch = pa.record_batch([zeros], names=["zeros"])
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    hostile.put(hostile.name, "bombs", batch, write_options=compressed)


def _rows(hostile: Hostile) -> None:
    """As many rows as possible, in batches near the limit."""
    rows = 400_000
    ids = np.arange(rows) + hostile.random.randrange(10**6)
    hosts = pa.array([f"h{n % 1000}" for n in range(rows)])
    batch = pa.record_batch([ids, hosts, ids % 97], names=["id", "host", "v"])
    hostile.put(hostile.name, "rows", batch, batch, batch)


def _scan(hostile: Hostile) -> None:
    """Query all its rows, and stall while reading them."""
    rows = _table_of_rows(hostile)
    for _ in range(5):
        hostile.get(rows, read=False)
    hostile.get(rows | {"filter": [[["v", ">", 50]]]})


def _table_of_rows(hostile: Hostile) -> dict[str, Any]:
    """Return the ticket of a table with rows, independent of earlier attempts."""
    table = {"namespace": hostile.name, "table": "rows"}
    try:
        hostile.act("describe_table", table)
    except pa.ArrowKeyError:
        _rows(hostile)
    return table


def _idle(hostile: Hostile) -> None:
    """Connections that send nothing, to both ports; beyond 400 the oldest are closed."""
    for url in (hostile.location, hostile.http):
        for _ in range(20):
            hostile.kept.append(socket.create_connection(hostile.address(url), timeout=5))
    slow = socket.create_connection(hostile.address(hostile.http), timeout=5)
    if hostile.ca:
        context = ssl.create_default_context(cadata=hostile.ca.decode())
        context.check_hostname = False
        slow = context.wrap_socket(slow, server_hostname="localhost")
    slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    hostile.kept.append(slow)
    while len(hostile.kept) > 400:
        hostile.kept.pop(0).close()


def _names(hostile: Hostile) -> None:
    """Escape sequences in names and values, and names of extreme length."""
    batch = pa.record_batch([pa.array([ESCAPES])], names=["text"])
    hostile.put(hostile.name, "texts", batch)
    for name in (f"t{ESCAPES}", "n" * 100_000):
        try:
            hostile.put(hostile.name, name, batch)
        except (fl.FlightError, pa.ArrowException) as exc:
            if "\x1b" in str(exc) or len(str(exc)) > 4000:
                raise NotRefused("an error echoes what it refuses") from exc
        else:
            raise NotRefused(f"table {name[:20]!r} was made")


def _metadata(hostile: Hostile) -> None:
    """Fifty megabytes of metadata with one row."""
    schema = pa.schema([pa.field("v", pa.int64())], metadata={"k": "x" * (50 << 20)})
    hostile.put(hostile.name, "metadata", pa.record_batch([pa.array([1])], schema=schema))


def _tables(hostile: Hostile) -> None:
    """A flood of tables, each of one row."""
    batch = pa.record_batch([pa.array([1])], names=["v"])
    for _ in range(100):
        hostile.put(hostile.name, f"t{hostile.random.randrange(10**9)}", batch)


def _intrusion(hostile: Hostile) -> None:
    """Access others' data in every way: with its own token, without one, and with forged ones."""
    for other in OTHERS:
        table = {"namespace": other, "table": "events"}
        for token in (None, "", "igt_forged_0000", f"{hostile.token}x"):
            _check_refused(partial(hostile.get, table, token=token))
            _check_refused(partial(hostile.act, "describe_table", table, token=token))
            _check_refused(partial(hostile.act, "persist", {"namespace": other}, token=token))
    batch = pa.record_batch([pa.array([1])], names=["v"])
    _check_refused(partial(hostile.put, OTHERS[0], "events", batch))
    _check_refused(partial(hostile.put, OTHERS[0], "mine", batch))
    with hostile.client() as client:
        paths = [each.descriptor.path for each in client.list_flights(options=hostile.options())]
    if any(path[0] != hostile.name.encode() for path in paths):
        raise NotRefused(f"the list of tables has what others have: {paths[:3]}")


def _check_refused(attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError):
        return
    except (fl.FlightError, pa.ArrowException) as exc:
        # HAProxy 2.6 ends a refused write as cancelled; the daemon's message is attached.
        said = getattr(exc, "extra_info", b"") or b""
        if b'"code":"forbidden"' in said or b'"code":"unauthenticated"' in said:
            return
        raise NotRefused(f"refused as something else: {str(exc)[:200]}") from exc
    raise NotRefused("somebody is in who should not be")


ATTACKS: dict[str, Callable[[Hostile], None]] = {
    "wide": _wide,
    "partitions": _partitions,
    "filter": _filter,
    "bomb": _bomb,
    "rows": _rows,
    "scan": _scan,
    "idle": _idle,
    "names": _names,
    "metadata": _metadata,
    "tables": _tables,
    "intrusion": _intrusion,
}


def attempt(hostile: Hostile, name: str) -> str:
    """Make one attempt; return ``answered``, or the start of the refusal.

    Raises:
        NotRefused: A request that must be refused was answered.
    """
    try:
        ATTACKS[name](hostile)
    except (fl.FlightError, pa.ArrowException, OSError) as exc:
        return f"{type(exc).__name__}: {str(exc)[:60]!r}"
    return "answered"
