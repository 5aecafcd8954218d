"""Log objects are deleted when their rows are in files, and not before."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
import trio
import trio.testing

from ingester.store_log.cleaner import RETRY_S, Cleaner, KeptObject
from ingester.store_log.reading import LeftObject
from persist.store import StoreUnavailable
from tests.drivers.memory_store import MemoryStore
from wal.objects import object_path

ID, EPOCH = "pod-0", 3


class Refusing(MemoryStore):
    """Refuses deletions while it is told to."""

    refuses = False

    def delete(self, path: str) -> None:
        if self.refuses:
            raise StoreUnavailable("503")
        super().delete(path)


def path(number: int, epoch: int = EPOCH) -> str:
    return object_path(ID, epoch, number)


def cleaner_of(store: MemoryStore, *made: KeptObject) -> Cleaner:
    """A cleaner, with the running epoch's objects in the store."""
    cleaner = Cleaner(store, ID, EPOCH)
    for each in made:
        store.put(path(each.number), b"x")
        cleaner.note_acknowledged(each)
    return cleaner


def left(store: MemoryStore, *kept_for: tuple[int, int]) -> list[LeftObject]:
    """Objects of an earlier epoch, given (segment, kept_for) each."""
    found = []
    for number, (segment, until) in enumerate(kept_for, 1):
        store.put(path(number, EPOCH - 1), b"x")
        found.append(LeftObject(path(number, EPOCH - 1), EPOCH - 1, segment, until))
    return found


def numbers(store: MemoryStore) -> list[int]:
    return [int(info.path[-24:-4]) for info in store.list("_log/")]


def clean(cleaner: Cleaner, keep_from: int) -> None:
    cleaner.keep_from(keep_from)
    trio.run(cleaner.clean)


def kept(*found: tuple[int, int, int]) -> Iterable[KeptObject]:
    """Objects, given (number, acknowledged, segment) each."""
    return (KeptObject(number, said, segment, 10) for number, said, segment in found)


def test_an_object_goes_after_the_last_segment_with_one_of_its_operations() -> None:
    store = MemoryStore()
    cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 1, 1), (3, 2, 2), (4, 3, 2), (5, 4, 3)))
    assert (cleaner.objects, cleaner.nbytes) == (5, 50)
    clean(cleaner, 1)
    assert numbers(store) == [1, 2, 3, 4, 5]
    clean(cleaner, 2)
    assert numbers(store) == [3, 4, 5]
    clean(cleaner, 1)
    assert numbers(store) == [3, 4, 5]
    clean(cleaner, 3)
    assert numbers(store) == [5]
    assert (cleaner.objects, cleaner.nbytes) == (1, 10)


def test_no_object_goes_before_an_older_one() -> None:
    """A later object may have held operations of an earlier segment."""
    store = MemoryStore()
    cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 1, 5), (3, 2, 2), (4, 3, 6)))
    clean(cleaner, 4)
    assert numbers(store) == [2, 3, 4]
    clean(cleaner, 6)
    assert numbers(store) == [4]


def test_the_newest_object_and_those_that_it_does_not_prove_are_kept() -> None:
    """A slow successor could otherwise put a fence at a number that was used and deleted."""
    store = MemoryStore()
    cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1)))
    clean(cleaner, 99)
    assert numbers(store) == [2, 3, 4]
    store.put(path(5), b"x")
    cleaner.note_acknowledged(KeptObject(5, 3, 1, 10))
    clean(cleaner, 99)
    assert numbers(store) == [4, 5]


def test_what_the_newest_object_does_not_call_kept_goes_together_and_what_it_does_in_order() -> (
    None
):
    """A daemon that makes eight objects at a time would not keep up with one deletion at a time."""

    class InPairs(MemoryStore):
        """Answers a deletion only beside another one."""

        both = threading.Barrier(2)

        def delete(self, path: str) -> None:
            self.both.wait(10)
            super().delete(path)

    store = InPairs()
    cleaner = cleaner_of(store, *kept(*((n, n - 1, 1) for n in range(1, 9)), (9, 8, 2)))
    cleaner.keep_from(2)
    assert cleaner.kept_from == 9
    store.put(path(10), b"x")
    cleaner.note_acknowledged(KeptObject(10, 9, 2, 10, kept_from=9))
    trio.run(cleaner.clean)
    assert numbers(store) == [9, 10]
    cleaner.keep_from(3)
    assert cleaner.kept_from == 10, "the newest one is kept"


def test_all_objects_go_when_the_epoch_has_ended() -> None:
    store = MemoryStore()
    cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 0, 9)))
    trio.run(cleaner.clean_up)
    assert (numbers(store), cleaner.objects) == ([], 0)


def test_an_object_of_an_earlier_epoch_goes_when_its_rows_are_in_files() -> None:
    store = MemoryStore()
    cleaner = cleaner_of(store)
    cleaner.note_left(left(store, (-2, -2), (-1, -1)))
    assert cleaner.objects == 2
    clean(cleaner, -2)
    assert numbers(store) == [1, 2]
    clean(cleaner, -1)
    assert numbers(store) == [2]
    clean(cleaner, 1)
    assert (numbers(store), cleaner.objects) == ([], 0)


def test_an_object_whose_operations_the_disk_has_too_stays_as_long_as_its_segments() -> None:
    store = MemoryStore()
    cleaner = cleaner_of(store)
    cleaner.note_left(left(store, (4, 4), (-1, 4)))
    clean(cleaner, 4)
    assert numbers(store) == [1, 2]
    clean(cleaner, 5)
    assert numbers(store) == []


def test_what_could_not_be_deleted_is_deleted_later() -> None:
    store = Refusing()
    cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 1, 1), (3, 2, 2)))
    store.refuses = True
    with pytest.raises(StoreUnavailable):
        clean(cleaner, 2)
    assert (numbers(store), cleaner.objects) == ([1, 2, 3], 3)
    store.refuses = False
    clean(cleaner, 2)
    assert numbers(store) == [3]


def test_the_running_cleaner_tries_again_after_a_time() -> None:
    store = Refusing()

    async def run() -> None:
        cleaner = cleaner_of(store, *kept((1, 0, 1), (2, 1, 1), (3, 2, 2)))
        store.refuses = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaner.run)
            cleaner.keep_from(2)
            await trio.testing.wait_all_tasks_blocked(0.01)
            store.refuses = False
            assert numbers(store) == [1, 2, 3]
            clock.jump(RETRY_S + 1)
            while numbers(store) != [3]:
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()

    clock = trio.testing.MockClock()
    trio.run(run, clock=clock)
