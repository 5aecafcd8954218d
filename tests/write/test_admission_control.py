"""The gate checks memory, disk and queue only at intervals; in between it admits from a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import DiskFull, FencedOff, MemoryFull, Stopping
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.quotas.fair_shares import equal_share
from ingester.quotas.namespaces import Namespaces
from ingester.write.admission import (
    CLEAR_HOLDS_S,
    RECORD_OVERHEAD_BYTES,
    AdmissionControl,
    DiskRoom,
    QueueRoom,
)

FOLDER = Path(__file__).parent
NO_SUCH_DISK_BYTES = 1 << 62


class Gate:
    """A gate on a fake clock, with the resources that it checks."""

    def __init__(self, high: int, certain_bytes: int = NO_SUCH_DISK_BYTES) -> None:
        self.ledger = MemoryLedger(Watermarks(limit=high, low=high, high=high))
        self.certain_bytes = certain_bytes
        self.looks = 0
        disk = DiskRoom(FOLDER, NO_SUCH_DISK_BYTES, lambda: self.certain_bytes)
        self.now, self.step_s = 0.0, 0.0
        namespaces = Namespaces(clock=self._clock)
        self.use = namespaces.of("ns")
        queue = QueueRoom(self._look, 0)
        self.gate = AdmissionControl(self.ledger, disk, queue, namespaces, clock=self._clock)

    def _clock(self) -> float:
        self.now += self.step_s
        return self.now

    def _look(self) -> int:
        self.looks += 1
        return 0

    def let_in(self, nbytes: int, batches: int) -> int:
        """Offer batches of one size; returns how many are admitted before the first refusal."""
        for number in range(batches):
            if self.gate.enter(nbytes, self.use) is not None:
                return number
        return batches


@given(st.integers(1, 20_000), st.lists(st.integers(1, 3_000), max_size=60))
def test_what_is_let_in_has_room(high: int, sizes: list[int]) -> None:
    made = Gate(high)
    for nbytes in sizes:
        before = made.ledger.own
        refusal = made.gate.enter(nbytes, made.use)
        most = high if before + nbytes <= equal_share(high, 1) else made.gate.shared_bytes
        assert (refusal is None) == (before + nbytes <= most or before == 0)
        assert made.ledger.own == before + (nbytes if refusal is None else 0)


def test_it_does_not_look_for_each_batch() -> None:
    made = Gate(8_000_000)
    assert made.let_in(100, 1_000) == 1_000
    assert made.looks == 1


def test_it_looks_again_when_some_time_has_passed() -> None:
    made = Gate(8_000_000)
    made.step_s = CLEAR_HOLDS_S
    assert made.let_in(100, 10) == made.looks == 10


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_room_that_others_took_meanwhile_is_overdrawn_by_a_part_of_it(what: str) -> None:
    made = Gate(10_800, certain_bytes=8_100 + RECORD_OVERHEAD_BYTES)
    assert made.gate.enter(100, made.use) is None
    if what == "memory":
        made.ledger.buffered += 8_100
        made.use.held_bytes += 8_100
    else:
        made.certain_bytes = 0
    assert made.let_in(100, 100) == 10
    expected = {"memory": MemoryFull, "disk": DiskFull}[what]
    assert isinstance(made.gate.enter(100, made.use), expected)


def test_a_stop_and_a_fence_hold_at_once() -> None:
    made = Gate(8_000_000)
    assert made.gate.enter(100, made.use) is None
    made.gate.stop()
    assert made.ledger.pending == 100
    assert isinstance(made.gate.enter(100, made.use), Stopping)
    made.gate.fence()
    assert isinstance(made.gate.enter(100, made.use), FencedOff)
