"""An old process, and successors that end its log, take turns at one store at every call.

The old process is a model of ``ingester.store_log.shipper`` and ``cleaner`` that hypothesis steps
through; what it creates, decides and deletes is real. The successors are the product's code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ingester.store_log.fencing import FencedEpoch, fence_epochs
from persist.manifest import WriterIdentity, claim_epoch, newest_epoch
from persist.store import AlreadyExists, ObjectStore
from tests.drivers.memory_store import MemoryStore
from tests.store_log.interleaving import Process
from wal import LogError, LogIdentity
from wal.objects import ObjectNote, decode_object, encode_object, object_path

ID = "machine"
IN_FLIGHT = 8


@dataclass
class Flight:
    """An object under way: not requested yet, stored, or known to be stored."""

    number: int
    acknowledged: int
    stored: bool = False


@dataclass
class OldProcess:
    """Epoch 1. Each method is one step, with at most one call of the store."""

    store: ObjectStore
    fenced: bool = False
    next_number: int = 1
    acknowledged: int = 0
    flights: list[Flight] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Acknowledged objects that are not deleted, and what each calls acknowledged."""
    in_files: int = 0
    """All objects up to this one have their rows in files."""
    deleted: int = 0
    replaced: bool = False
    """Whether a successor has registered its epoch in the manifests."""

    def begin(self) -> None:
        """Begin the next object; the second one only once the first counts."""
        if self.fenced or len(self.flights) == IN_FLIGHT:
            return
        if self.next_number == 1 or self.acknowledged:
            self.flights.append(Flight(self.next_number, self.acknowledged))
            self.next_number += 1

    def request(self, which: int) -> None:
        """A request under way reaches the store; also that of a process that was fenced."""
        waiting = [flight for flight in self.flights if not flight.stored]
        if not waiting:
            return
        flight = waiting[which % len(waiting)]
        path, data = object_path(ID, 1, flight.number), self._data(flight)
        try:
            self.store.create(path, data)
        except AlreadyExists:
            if self.store.get(path) != data:
                assert decode_object(self.store.get(path), path).note.fenced_by is not None
                self.fenced = True
                self.flights.remove(flight)
                return
        flight.stored = True

    def request_again(self, which: int) -> None:
        """The answer to a create was lost, and it is sent again."""
        stored = [flight for flight in self.flights if flight.stored]
        if stored:
            stored[which % len(stored)].stored = False

    def land(self) -> None:
        """Acknowledge the oldest object, if it is stored."""
        if self.fenced or not self.flights or not self.flights[0].stored:
            return
        if self.flights[0].number == 1 and not self.counts():
            self.fenced = True
            return
        flight = self.flights.pop(0)
        self.acknowledged = flight.number
        self.kept.append((flight.number, flight.acknowledged))

    def counts(self) -> bool:
        """Whether the first object counts."""
        return not newest_epoch(self.store, ID, 2)

    def flush(self) -> None:
        """Put all acknowledged rows into files; a replaced process cannot commit them."""
        if not self.fenced and not self.replaced:
            self.in_files = self.acknowledged

    def clean(self) -> None:
        """Delete the oldest object, if the cleaner would; a paused process may be about to."""
        if self.kept and self.kept[0][0] <= min(self.in_files, self.kept[-1][1]):
            self.store.delete(object_path(ID, 1, self.kept.pop(0)[0]))
            self.deleted += 1

    def step(self, choice: int) -> None:
        """Take the step of a number."""
        steps = (
            self.begin,
            lambda: self.request(choice // 8),
            lambda: self.request_again(choice // 8),
            self.land,
            self.land,
            self.flush,
            self.clean,
            self.clean,
        )
        steps[choice % 8]()

    def _data(self, flight: Flight) -> bytes:
        identity = LogIdentity(ID, "old", 1)
        return encode_object(
            flight.number, identity, (), ObjectNote(acknowledged=flight.acknowledged)
        )


def writer(epoch: int) -> WriterIdentity:
    """The identity of an epoch's process."""
    return WriterIdentity(ID, "old" if epoch == 1 else f"new-{epoch}", epoch)


@dataclass
class Succession:
    """What a successor found."""

    epoch: int
    ended: list[FencedEpoch]

    @property
    def numbers(self) -> set[int]:
        """The objects of epoch 1 that it replays."""
        return {number for one in self.ended if one.epoch == 1 for number in one.numbers}


def succeed(store: ObjectStore) -> Succession:
    """Claim an epoch and end the earlier logs."""
    epoch = claim_epoch(store, ID, 2, {"incarnation": "new"})
    return Succession(epoch, fence_epochs(store, writer(epoch)))


class World:
    """An old process, successors one after the other or at once, and what must hold."""

    def __init__(self, old: type[OldProcess]) -> None:
        self.store = MemoryStore()
        claim_epoch(self.store, ID, 1, {"incarnation": "old"})
        self.old = old(self.store)
        self.found: list[Succession] = []
        self.running: list[Process[Succession]] = []

    def step(self, who: int, choice: int) -> None:
        """Let the old process (0 to 5) or a successor (6 to 9) take a step."""
        if who < 6:
            self.old.step(choice)
            self.check()
            return
        at = who % 2
        if at == len(self.running):
            self.running.append(Process(succeed, self.store))
        elif at < len(self.running):
            self.running[at].step()
        self.collect()

    def collect(self) -> None:
        """Note what ended successors have found; their commits exclude those of the old process."""
        for process in self.running:
            if process.ended and process.result is None:
                process.finish()  # raises what it raised
            if process.ended and process.result not in self.found:
                assert process.result is not None
                self.found.append(process.result)
                self.old.replaced = True
                self.check()

    def check(self) -> None:
        """No successor leaves out what was acknowledged before or is acknowledged later."""
        needed = set(range(self.old.in_files + 1, self.old.acknowledged + 1))
        for found in self.found:
            # An object without operations is not needed.
            assert needed - {1} <= found.numbers, f"{needed - found.numbers} are left out"

    def end(self) -> None:
        """Finish all, with one more successor, and let what is under way arrive."""
        for process in self.running:
            process.finish()
        self.collect()
        last = succeed(self.store)
        self.found.append(last)
        self.old.replaced = True
        self.check()
        for _ in range(2 * IN_FLIGHT):
            self.old.request(0)
            self.old.land()
            self.check()
        # A successor's rows do not disappear with it, and what it left out does not come back.
        again = succeed(self.store)
        for found in self.found:
            assert again.numbers - {1} <= found.numbers  # the first has no operations
            lost = {n for n in found.numbers if n > self.old.in_files} - again.numbers
            assert not lost, f"{lost} were replayed once and are gone"


Step = tuple[int, int, int]
SCHEDULES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 63), st.sampled_from([1, 1, 2, 8])), max_size=40
)
"""Who takes a step, which, and how many times."""


def run(shipped: int, steps: list[Step], old: type[OldProcess] = OldProcess) -> World:
    """Let the old process ship some objects alone; then all take turns."""
    world = World(old)
    try:
        for _ in range(shipped):
            world.old.begin()
            world.old.request(0)
            world.old.land()
        for who, choice, times in steps:
            for _ in range(times):
                world.step(who, choice)
        world.end()
    finally:
        for process in world.running:
            process.kill()
    return world


@settings(max_examples=int(os.environ.get("INGESTER_TEST_INTERLEAVINGS", "300")))
@given(st.integers(0, 4), SCHEDULES)
def test_nothing_that_was_acknowledged_lies_behind_a_fence(shipped: int, steps: list[Step]) -> None:
    world = run(shipped, steps)
    event(f"deleted: {world.old.deleted > 0}")
    event(f"two successors at once: {len(world.running) == 2}")
    event(f"objects behind a fence: {any(one.behind for s in world.found for one in s.ended)}")


class DeletesTooFar(OldProcess):
    """Deletes what is in files, up to and with its newest object."""

    def clean(self) -> None:
        """Delete without a proof."""
        if self.kept and self.kept[0][0] <= self.in_files:
            self.store.delete(object_path(ID, 1, self.kept.pop(0)[0]))


class CountsItsFirst(OldProcess):
    """Does not look for later claims after its first object."""

    def counts(self) -> bool:
        """Without looking."""
        return True


class AcknowledgesAtOnce(OldProcess):
    """Acknowledges an object although an earlier one is not stored."""

    def land(self) -> None:
        """Take any stored object."""
        self.flights.sort(key=lambda flight: not flight.stored)
        super().land()


BEGIN, REQUEST, REQUEST_SECOND, LAND, FLUSH, CLEAN = 0, 1, 9, 3, 5, 6
SUCCEED: list[Step] = [(6, 0, 8), (6, 0, 8)]


def steps_of(*choices: int) -> list[Step]:
    """Steps of the old process."""
    return [(0, choice, 1) for choice in choices]


SLOW_SUCCESSOR: list[Step] = [
    *steps_of(FLUSH, CLEAN, CLEAN),
    (6, 0, 6),  # it has looked, and is about to create a fence at 4
    *steps_of(BEGIN, REQUEST, LAND, FLUSH, CLEAN, CLEAN),
    (6, 0, 8),
    *steps_of(BEGIN, REQUEST, LAND),
]


@pytest.mark.parametrize(
    ("old", "shipped", "steps"),
    [
        (DeletesTooFar, 3, SLOW_SUCCESSOR),
        (CountsItsFirst, 0, SUCCEED + 2 * steps_of(BEGIN, REQUEST, LAND)),
        (AcknowledgesAtOnce, 1, steps_of(BEGIN, BEGIN, REQUEST_SECOND, LAND)),
    ],
)
def test_each_rule_of_the_old_process_is_needed(
    old: type[OldProcess], shipped: int, steps: list[Step]
) -> None:
    run(shipped, steps)
    with pytest.raises((AssertionError, LogError)):
        run(shipped, steps, old)
