"""A daemon shows that it lives while its log objects have rows in no file, and then rests."""

from __future__ import annotations

import trio

from ingester.store_log.cleaner import Cleaner, KeptObject
from ingester.store_log.heartbeat import Heart, Heartbeat, decode_heartbeat, heartbeat_path
from ingester.store_log.reading import LeftObject
from persist.manifest import WriterIdentity
from tests.drivers.memory_store import MemoryStore
from wal.objects import ObjectName, object_path

NOTHING = 1 << 62
WRITER = WriterIdentity("a", "first", 3)


class Scene:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.cleaner = Cleaner(self.store, "a", 3)
        self.needed = NOTHING
        self.heart = Heart(
            self.store,
            WRITER,
            self.cleaner,
            lambda: self.needed,
        )

    def acknowledge(self, number: int, segment: int) -> None:
        self.cleaner.note_acknowledged(KeptObject(number, number - 1, segment, 100))

    def beat(self) -> Heartbeat | None:
        """The heartbeat after the next look, if that has written one."""
        self.store.delete(heartbeat_path("a"))
        trio.run(self.heart.look)
        if self.store.exists(heartbeat_path("a")) is None:
            return None
        return decode_heartbeat(self.store.get(heartbeat_path("a")))


def test_a_daemon_without_log_objects_writes_nothing() -> None:
    assert Scene().beat() is None


def test_it_beats_while_rows_are_in_no_file_and_no_new_object_shows_that_it_lives() -> None:
    scene = Scene()
    scene.needed = 7
    scene.acknowledge(1, 6)
    scene.acknowledge(2, 7)
    assert scene.beat() is None
    first, second = scene.beat(), scene.beat()
    assert first is not None
    assert second is not None
    assert (first.epoch, first.in_files, first.beat) == (3, 1, 1)
    assert second.beat == 2
    assert second.covers(ObjectName("a", 2, 99))
    assert second.covers(ObjectName("a", 3, 1))
    assert not second.covers(ObjectName("a", 3, 2))


def test_once_all_rows_are_in_files_it_says_so_and_rests_until_the_next_object() -> None:
    scene = Scene()
    scene.needed = 7
    scene.acknowledge(1, 7)
    assert scene.beat() is None
    scene.needed = NOTHING
    said = scene.beat()
    assert said is not None
    assert said.covers(ObjectName("a", 3, 1))
    assert [scene.beat(), scene.beat()] == [None, None]
    scene.acknowledge(2, 7)
    scene.needed = 7
    assert scene.beat() is None
    again = scene.beat()
    assert again is not None
    assert not again.covers(ObjectName("a", 3, 2))


def test_objects_of_earlier_epochs_are_covered_only_when_their_rows_are_in_files() -> None:
    scene = Scene()
    path = object_path("a", 2, 5)
    scene.store.create(path, b"")
    scene.cleaner.note_left([LeftObject(path, 2, -1, -1)])
    scene.needed = -1
    beats = [scene.beat(), scene.beat()]
    assert all(each is not None and not each.covers(ObjectName("a", 2, 5)) for each in beats)
    scene.needed = NOTHING
    scene.acknowledge(1, 1)
    said = scene.beat()
    assert said is not None
    assert said.covers(ObjectName("a", 2, 5))
    assert scene.beat() is None
