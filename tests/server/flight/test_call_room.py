"""The threads of gRPC: calls that are let in have theirs, and strangers a few."""

from __future__ import annotations

import platform
import socket
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hpack
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.server.auth.access import Access
from ingester.server.auth.rights import EVERYBODY, Caller
from ingester.server.flight.call_room import LEAST_WAITING, STEP, WAITING_SHARE, CallRoom
from ingester.server.flight.callers import middleware
from tests.drivers.daemon import Daemon
from tests.drivers.tokens import Tokens
from tests.drivers.waiting import until
from tests.server.flight.test_first_heads import (
    DATA,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    frame,
    frames,
    head,
)

MOST = 1024
UNAUTHENTICATED, RESOURCE_EXHAUSTED = "16", "8"


def test_the_limit_follows_the_calls_that_are_let_in() -> None:
    room, limits = CallRoom(), list[int]()
    waiting = MOST // WAITING_SHARE
    room.bound(MOST, limits.append)
    assert limits == [STEP + waiting]
    for _ in range(MOST):
        room.enter()
        assert limits[-1] == MOST or limits[-1] >= room.let_in + waiting
    assert limits[-1] == MOST
    assert len(limits) <= MOST // STEP + 1
    for _ in range(MOST):
        room.leave()
    assert limits[-1] == STEP + waiting


def test_few_calls_in_all_leave_some_to_wait_and_are_never_more() -> None:
    room, limits = CallRoom(), list[int]()
    room.bound(LEAST_WAITING // 2, limits.append)
    assert limits == [LEAST_WAITING // 2]


class Knows:
    """Lets in whoever shows the right token."""

    def knows(self, token: str) -> bool:
        return token == "right"

    def caller(self, token: str) -> Caller:
        return EVERYBODY


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Calls that end in each way."""

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        if action.type == "fail":
            raise RuntimeError
        return [b""]

    def do_get(self, context: Any, ticket: Any) -> fl.FlightDataStream:
        batch = pa.record_batch({"a": pa.array(range(10_000))})
        return fl.GeneratorStream(batch.schema, (batch for _ in iter(int, 1)))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass


def test_a_call_is_counted_until_it_ends_however_it_does() -> None:
    access, room = Access(), CallRoom()
    access.trust(Knows())
    with (
        Server("grpc://127.0.0.1:0", middleware=middleware(access, lambda _: None, room)) as server,
        fl.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        right = fl.FlightCallOptions(timeout=20, headers=[(b"authorization", b"Bearer right")])
        wrong = fl.FlightCallOptions(timeout=20, headers=[(b"authorization", b"Bearer wrong")])
        schema, path = pa.schema([("a", pa.int64())]), fl.FlightDescriptor.for_path("p")
        writers = [client.do_put(path, schema, right)[0] for _ in range(3)]
        until(lambda: room.let_in == len(writers), "the streams to be let in")
        answer = client.do_get(fl.Ticket(b""), right)
        answer.read_chunk()
        assert room.let_in == len(writers) + 1
        answer.cancel()
        for writer in writers:
            writer.close()
        for kind in ("go", "fail"):
            with suppress(fl.FlightError, pa.ArrowException):
                list(client.do_action(kind, right))
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.do_put(path, schema, wrong)[0].close()
        until(lambda: room.let_in == 0, "all calls to be over")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Daemon, bytes]]:
    kept = Tokens(tmp_path / "tokens.json")
    kept.add("alice", "*:admin")
    with Daemon.start(tmp_path / "d", auth__tokens=kept.path, limits__calls=MOST) as running:
        yield running, kept.secret["alice"].encode()


def threads(daemon: Daemon) -> int:
    (line,) = (
        line
        for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
        if line.startswith("Threads:")
    )
    return int(line.split()[1])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="known on x86-64 only")
def test_strangers_take_few_threads_and_give_them_back(daemon: tuple[Daemon, bytes]) -> None:
    running, token = daemon
    address = urllib.parse.urlsplit(running.flight)
    assert address.hostname is not None
    calls, before = MOST - 1, threads(running)
    call = b"".join(
        frame(HEADERS, END_HEADERS, stream, head(0))
        + frame(DATA, END_STREAM, stream, EMPTY_MESSAGE)
        for stream in range(1, 2 * calls, 2)
    )
    told: Counter[str] = Counter()
    most = 0
    with socket.create_connection((address.hostname, address.port or 0), 20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + call)
        decoder = hpack.Decoder()
        for kind, _, payload in frames(connection):
            if kind == HEADERS:
                fields: dict[Any, Any] = dict(decoder.decode(payload))
                told[fields["grpc-status"]] += 1
                most = max(most, threads(running))
                if told.total() == calls:
                    break
    assert told[UNAUTHENTICATED]
    assert told.keys() <= {UNAUTHENTICATED, RESOURCE_EXHAUSTED}
    assert most <= before + 2 * STEP + MOST // WAITING_SHARE
    with fl.connect(running.flight) as client:
        headers = [(b"authorization", b"Bearer " + token)]
        assert list(client.list_actions(fl.FlightCallOptions(timeout=20, headers=headers)))
    until(lambda: threads(running) < before + STEP, "the threads to end")
