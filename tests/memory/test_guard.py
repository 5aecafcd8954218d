"""What is resident counts, where it is more than what is known of."""

from __future__ import annotations

import socket

import trio
import trio.testing

from ingester.memory.guard import (
    BETWEEN_TRIMS_S,
    COLLECT_AFTER_S,
    KIND,
    LOOK_S,
    SLACK_BYTES,
    MemoryGuard,
    resident_bytes,
)
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.server.flight.connections import Arrived, ConnectionLimits, Connections
from ingester.server.flight.hoards import Hoards
from ingester.server.flight.unread import SILENT_S, WORTH_BYTES, Unread
from tests.drivers.waiting import until

MIB = 1 << 20


class World:
    """A process whose resident memory, and what a trim gives back of it, a test says."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(Watermarks(limit=100 * MIB, low=50 * MIB, high=90 * MIB))
        self.resident = self.after_trim = 0
        self.trims = self.collections = self.relieved = 0
        self.trim_s = 0.0
        self.guard = MemoryGuard(
            self.ledger, self._relieve, lambda: self.resident, self._trim, self._collect
        )

    async def _trim(self) -> None:
        self.trims += 1
        await trio.sleep(self.trim_s)
        self.resident = self.after_trim

    async def _collect(self) -> None:
        self.collections += 1

    def _relieve(self) -> bool:
        self.relieved += 1
        return True

    def be(self, mib: int, after_trim: int) -> None:
        """Have so much resident beside the allowance, and so much after a trim."""
        self.resident, self.after_trim = ((each * MIB) + SLACK_BYTES for each in (mib, after_trim))

    @property
    def unaccounted(self) -> int:
        return self.ledger.statistics().by_kind[KIND] // MIB


def test_memory_that_nobody_counts_refuses_writes_until_it_is_gone() -> None:
    trio.run(_grow_and_shrink, clock=trio.testing.MockClock(autojump_threshold=0))


async def _grow_and_shrink() -> None:
    world = World()
    world.ledger.buffered = 40 * MIB
    world.be(89, 89)
    await world.guard.look()
    assert (world.unaccounted, world.trims) == (0, 0), "below the bound nothing is done"
    world.be(95, 60)
    await world.guard.look()
    assert (world.unaccounted, world.trims) == (20, 1)
    world.be(97, 60)
    await world.guard.look()
    assert (world.unaccounted, world.trims) == (57, 1), "trims have a pause between them"
    assert world.ledger.used == 97 * MIB, "over the high watermark: writes are refused"
    assert world.relieved == 2
    await trio.sleep(BETWEEN_TRIMS_S)
    world.be(130, 120)
    await world.guard.look()
    assert (world.unaccounted, world.trims, world.relieved) == (80, 2, 3)
    world.be(50, 50)
    await world.guard.look()
    assert (world.unaccounted, world.ledger.used) == (0, 40 * MIB)


def test_who_holds_memory_goes_also_while_a_trim_takes_its_time() -> None:
    trio.run(_trim_slowly, clock=trio.testing.MockClock(autojump_threshold=0))


async def _trim_slowly() -> None:
    world = World()
    world.trim_s = 4.5 * LOOK_S
    world.be(150, 50)
    await world.guard.look()
    assert (world.relieved, world.trims) == (5, 1)
    assert world.unaccounted == 50


def test_garbage_is_collected_where_trims_are_not_enough_for_long() -> None:
    trio.run(_collect_late, clock=trio.testing.MockClock(autojump_threshold=0))


async def _collect_late() -> None:
    world = World()

    async def look(after_trim: int) -> None:
        world.be(130, after_trim)
        await world.guard.look()
        await trio.sleep(BETWEEN_TRIMS_S)

    for _ in range(int(2 * COLLECT_AFTER_S / BETWEEN_TRIMS_S)):
        await look(60)
    assert world.collections == 0, "each trim was enough"
    began = trio.current_time()
    while not world.collections:
        await look(120)
    assert COLLECT_AFTER_S <= trio.current_time() - began < COLLECT_AFTER_S + 1
    await look(120)
    assert world.collections == 1


def test_this_process_is_resident() -> None:
    before = resident_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert resident_bytes() - before > 60 * MIB
    assert len(held) == 64 * MIB


class Port:
    """Connections that have received what a test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gone: list[str] = []
        self.received: dict[str, Arrived] = {}
        self.hoards = Hoards(MIB, self.cut, now=lambda: self.now)
        self.unread = Unread(self, self.hoards, 100 * MIB, now=lambda: self.now)

    def arrived(self) -> list[Arrived]:
        return list(self.received.values())

    def cut(self, peer: str) -> bool:
        self.gone.append(peer)
        return self.received.pop(peer, None) is not None

    def look(self, after_s: float, **mib: int) -> None:
        """Look some time after the last look, when each has received so much, as a stream does."""
        self.now += after_s
        for peer, nbytes in mib.items():
            self.received[peer] = Arrived(peer, nbytes * MIB, 0.0, 0)
        self.unread.look()


def test_who_has_sent_most_that_made_no_batch_is_cut_where_there_is_much() -> None:
    port = Port()
    writer, hoarder = port.hoards.join("writer", None), port.hoards.join("hoarder", None)
    writer.waits = hoarder.waits = True
    for sent in range(1, 5):
        writer.batches = sent
        port.look(2.0, writer=200 * sent, hoarder=20 * sent)
    assert port.gone == [], "there is not much yet"
    port.look(2.0, hoarder=101)
    assert port.gone == ["hoarder"]
    assert not port.unread.cut_largest(), "what has made a batch is not unread"
    # Who waits for the daemon keeps its connection, and so does one whose call has all it needs.
    stalled = port.hoards.join("stalled", None)
    stalled.waits = False
    port.look(60.0, stalled=500)
    port.received["asks"] = Arrived("asks", 500 * MIB, 60.0, calls=1)
    port.look(60.0)
    assert port.gone == ["hoarder"]


def test_where_memory_is_short_not_much_is_left_that_made_no_batch() -> None:
    port = Port()
    port.look(0.5, a=20, b=80, c=60, d=70)
    assert port.gone == []
    assert port.unread.cut_largest()
    assert port.gone == ["b", "d"]
    assert not port.unread.cut_largest()


def test_a_connection_has_room_for_what_its_streams_can_need_and_no_more() -> None:
    port = Port()
    most_mib = (100 * MIB + WORTH_BYTES + MIB) // MIB  # a batch, and the dictionaries of all
    port.look(0.1, one=most_mib)
    for stream in (port.hoards.join("two", None) for _ in range(2)):
        stream.waits = True
    port.look(0.1, two=2 * most_mib - 1)
    assert port.gone == []
    port.look(0.1, one=most_mib + 1)
    assert port.gone == ["one"]
    port.look(0.1, two=2 * most_mib)
    assert port.gone == ["one", "two"]


def test_half_a_message_is_not_waited_for_without_end() -> None:
    port = Port()
    port.look(0.5, half=60)
    for silent_s in (5.0, SILENT_S - 0.1):
        port.received["half"] = Arrived("half", 60 * MIB, silent_s, 0)
        port.look(0.5)
    assert port.gone == []
    port.received["half"] = Arrived("half", 60 * MIB, SILENT_S, 0)
    port.look(0.5)
    assert port.gone == ["half"]


def test_the_kernel_says_what_a_connection_has_received() -> None:
    connections = Connections(ConnectionLimits(10, 10), lambda _: None)
    client, server = _connected()
    with client, server:
        assert connections.admit(server.fileno(), "peer", "127.0.0.1")
        client.sendall(bytes(4321))
        until(lambda: connections.arrived()[0].nbytes == 4321, "the bytes")
        assert connections.arrived()[0].silent_s < 30
        connections.called("peer")
        assert connections.arrived()[0].calls == 1
        assert connections.cut("peer")
        assert client.recv(1) == b""
        connections.forget(server.fileno())
        assert connections.arrived() == []


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]
