"""Bytes that make no call and no batch: who sends them without end is cut, and nobody else."""

from __future__ import annotations

import platform
import socket
import urllib.parse
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import pyarrow.flight as fl
import pytest

from ingester.server.flight.connections import (
    HELD_BACK_S,
    ONE_EACH_S,
    Arrived,
    ConnectionLimits,
    Connections,
    stand_ins,
)
from ingester.server.flight.floods import CALLER_BYTES, FREE_BYTES_S, STRANGER_BYTES, Floods
from ingester.server.flight.hoards import Hoards
from ingester.server.flight.reception import largest_message
from ingester.server.flight.requests import MAX_BODY_BYTES
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.server.flight.test_first_heads import SETTINGS, frame

MESSAGE_BYTES = 4 * STRANGER_BYTES


class Port:
    """Connections that have received what a test says."""

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self.now = 0.0
        self.cut: list[str] = []
        self.there: dict[str, Arrived] = {}
        self.hoards = Hoards(1, lambda _: False)
        self.floods = Floods(self, self.hoards, message_bytes, lambda: self.now)

    def arrived(self) -> list[Arrived]:
        return list(self.there.values())

    def cut_and_hold_back(self, peer: str) -> bool:
        self.cut.append(peer)
        return self.there.pop(peer, None) is not None

    def look(
        self, nbytes: int, calls: int = 0, let_in: bool = False, peers: Sequence[str] = ("peer",)
    ) -> list[str]:
        """Whom a look cuts that comes a second after the last, when so much came of some peers."""
        self.now += 1.0
        for peer in peers:
            before = self.there.get(peer, Arrived(peer, 0, 0.0, 0))
            self.there[peer] = Arrived(peer, before.nbytes + nbytes, 0.0, calls, let_in)
        self.floods.look()
        return self.cut


def test_strangers_of_an_address_have_little_and_refused_calls_give_none_back() -> None:
    port, peers = Port(), ["ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"]
    other = Arrived("ipv4:10.0.0.2:1", MESSAGE_BYTES, 0.0, 0)
    port.there[other.peer] = other
    assert port.look(STRANGER_BYTES + FREE_BYTES_S, calls=1, peers=peers) == []
    assert port.look(FREE_BYTES_S, calls=2, peers=peers) == []
    assert port.look(2 * FREE_BYTES_S, calls=3, peers=peers) == peers


def test_a_stranger_alone_may_send_a_message_that_is_too_large_to_be_taken() -> None:
    port = Port()
    assert port.look(MESSAGE_BYTES + FREE_BYTES_S) == []
    assert port.look(2 * FREE_BYTES_S) == ["peer"]


def test_what_is_free_in_a_second_is_never_a_flood() -> None:
    port = Port()
    assert [port.look(FREE_BYTES_S) for _ in range(100)][-1] == []


def test_a_caller_has_the_largest_message_and_anew_with_each_call() -> None:
    port = Port()
    for calls in range(1, 4):
        assert port.look(MESSAGE_BYTES, calls, let_in=True) == []
    assert port.look(CALLER_BYTES + FREE_BYTES_S, 3, let_in=True) == []
    assert port.look(MESSAGE_BYTES + FREE_BYTES_S, 3, let_in=True) == []
    assert port.look(2 * FREE_BYTES_S, 3, let_in=True) == ["peer"]


def test_many_actions_of_a_caller_at_a_time_are_no_flood_though_none_is_whole_yet() -> None:
    """A message may be small where batches are: the bodies of actions are not."""
    port = Port(message_bytes=largest_message(1 << 10))
    assert port.look(1 << 10, 1, let_in=True) == []
    assert port.look(64 * MAX_BODY_BYTES, 1, let_in=True) == []
    assert port.look(1 << 10, 65, let_in=True) == []


def test_a_message_is_no_flood_however_small_batches_are() -> None:
    assert Port(message_bytes=largest_message(1 << 10)).look(MAX_BODY_BYTES + FREE_BYTES_S) == []


def test_each_stream_has_the_largest_message_and_one_that_the_daemon_holds_up_is_not_cut() -> None:
    port = Port()
    streams = [port.hoards.join("peer", None) for _ in range(3)]
    for each in streams:
        each.waits = True
    assert port.look(4 * MESSAGE_BYTES + FREE_BYTES_S) == []
    for each in streams:
        each.waits = False
    assert port.look(2 * FREE_BYTES_S) == []
    streams[0].waits = True
    assert port.look(FREE_BYTES_S) == ["peer"]


def test_an_address_is_held_back_for_a_while_and_others_are_not() -> None:
    now, told = [0.0], list[str]()
    port = Connections(ConnectionLimits(10, 10), told.append, lambda: now[0])
    with socket.socket() as sock:
        assert port.admit(sock.fileno(), "ipv4:10.0.0.1:1", "10.0.0.1")
        assert port.cut_and_hold_back("ipv4:10.0.0.1:1")
        assert not port.cut_and_hold_back("ipv4:10.0.0.9:1")
    assert not port.admit(1001, "ipv4:10.0.0.1:2", "10.0.0.1")
    assert told == ["connections_per_peer"]
    assert port.admit(1002, "ipv4:10.0.0.2:1", "10.0.0.2")
    now[0] = ONE_EACH_S
    assert port.admit(1003, "ipv4:10.0.0.1:3", "10.0.0.1")
    assert not port.admit(1004, "ipv4:10.0.0.1:4", "10.0.0.1")
    now[0] = HELD_BACK_S
    assert all(port.admit(n, f"ipv4:10.0.0.1:{n}", "10.0.0.1") for n in range(1005, 1008))


def test_an_address_that_clients_share_is_not_held_back_where_that_is_set() -> None:
    port = Connections(ConnectionLimits(10, 10, hold_back_s=0), lambda _: None, lambda: 0.0)
    with socket.socket() as sock:
        assert port.admit(sock.fileno(), "ipv4:10.0.0.1:1", "10.0.0.1")
        assert port.cut_and_hold_back("ipv4:10.0.0.1:1")
    assert all(port.admit(n, f"ipv4:10.0.0.1:{n}", "10.0.0.1") for n in range(1001, 1004))


def test_what_fails_at_a_connection_closes_it_and_the_next_one_is_accepted() -> None:
    """gRPC ends accepting for anything that is raised, and has descriptor 0 for the connection."""
    failing = [SystemExit, MemoryError, ValueError, OSError]

    class Failing(Connections):
        def admit(self, fd: int, peer: str, host: str) -> bool:
            admitted = super().admit(fd, peer, host)
            if failing:
                raise failing.pop()
            return admitted

        def forget(self, fd: int) -> None:
            super().forget(fd)
            if failing:
                raise RuntimeError

    port, closed = Failing(ConnectionLimits(10, 10), lambda _: None), list[int]()

    def ended(fd: int) -> int:
        closed.append(fd)
        return 0

    with ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        there = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        for each in there:
            held.callback(each.close)
        came = [held.enter_context(listener.accept()[0]) for _ in there]
        fds = iter([each.fileno() for each in came])
        accept, close = stand_ins(port, lambda *_: next(fds), ended)
        assert accept(0, 0, 0, 0) == came[-1].fileno()
        assert closed == [each.fileno() for each in came[:-1]]
        assert port.statistics().open == 1
        failing.append(ValueError)
        assert close(came[-1].fileno()) == 0
        assert closed[-1] == came[-1].fileno() and port.statistics().open == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="known on x86-64 only")
def test_a_flood_of_frames_is_cut_and_others_are_answered(shared: Daemon) -> None:
    address = urllib.parse.urlsplit(shared.flight)
    assert address.hostname is not None
    unknown = 0x77
    flood, sent = frame(unknown, 0, 0) * 20_000, 0
    at = address.hostname, address.port or 0
    with socket.create_connection(at, 20, source_address=("127.0.0.77", 0)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 1 << 31:
                connection.sendall(flood)
                sent += len(flood)
    assert STRANGER_BYTES <= sent < 1 << 31
    until(lambda: "floods the port" in shared.stderr_file.read_text(), "the cut to be told")
    with fl.connect(shared.flight) as client:
        assert list(client.list_actions(fl.FlightCallOptions(timeout=20)))
