"""What is resident counts, where it is more than what is known of."""

from __future__ import annotations

import time

import trio
import trio.testing

from ingester.memory.guard import BETWEEN_TRIMS_S, KIND, SLACK_BYTES, MemoryGuard, resident_bytes
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.server.flight.connections import ConnectionLimits, Connections
from ingester.server.flight.hoards import Hoards
from ingester.server.flight.unread import Unread

MIB = 1 << 20


class World:
    """A process whose resident memory, and what a trim gives back of it, a test says."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(Watermarks(limit=100 * MIB, low=50 * MIB, high=90 * MIB))
        self.resident = self.after_trim = 0
        self.trims = self.relieved = 0
        self.guard = MemoryGuard(self.ledger, self._relieve, lambda: self.resident, self._trim)

    async def _trim(self) -> None:
        self.trims += 1
        self.resident = self.after_trim

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
    assert world.relieved == 0
    await trio.sleep(BETWEEN_TRIMS_S)
    world.be(130, 120)
    await world.guard.look()
    assert (world.unaccounted, world.trims, world.relieved) == (80, 2, 1)
    world.be(50, 50)
    await world.guard.look()
    assert (world.unaccounted, world.ledger.used) == (0, 40 * MIB)


def test_this_process_is_resident() -> None:
    before = resident_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert resident_bytes() - before > 60 * MIB
    assert len(held) == 64 * MIB


class Received(Connections):
    """Connections that have received what a test says."""

    def __init__(self) -> None:
        super().__init__(ConnectionLimits(10, 10), lambda _: None)
        self.by_peer: dict[str, int] = {}
        self.gone: list[str] = []

    def received(self, peers: object) -> dict[str, int]:
        return dict(self.by_peer)

    def cut(self, peer: str) -> bool:
        self.gone.append(peer)
        return True


def test_who_has_sent_most_that_made_no_batch_is_cut() -> None:
    connections = Received()
    hoards = Hoards(MIB, connections.cut)
    unread = Unread(connections, hoards)
    writer, hoarder = hoards.join("writer", None), hoards.join("hoarder", None)
    for sent in range(1, 6):
        connections.by_peer = {"writer": 100 * sent * MIB, "hoarder": 20 * sent * MIB}
        writer.at = time.monotonic() + sent  # a batch came out of it
        unread.look()
    assert unread.cut_largest()
    assert connections.gone == ["hoarder"]
    hoards.leave(hoarder)
    connections.by_peer.pop("hoarder")
    assert not unread.cut_largest(), "what has made a batch is not unread"
    assert connections.gone == ["hoarder"]
