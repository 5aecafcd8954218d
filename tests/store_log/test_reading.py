"""Reading the objects of ended logs: in order, several ahead, without what the disk has."""

from __future__ import annotations

import threading

import pytest

import ingester.store_log.reading as reading
from ingester.store_log.fencing import FencedEpoch
from ingester.store_log.reading import AHEAD, LeftObject, ObjectCursor, cursors, left_objects
from persist.store import ObjectNotFound, StoreUnavailable
from tests.drivers.memory_store import MemoryStore
from wal import (
    Entry,
    LogIdentity,
    ObjectDamaged,
    Preamble,
    Record,
    RecordKind,
    SegmentFacts,
)
from wal.objects import ObjectNote, encode_object, object_path

ID = "pod-0"
SCHEMA = Preamble(RecordKind.SCHEMA, (b"schema",))


def put_object(
    store: MemoryStore,
    number: int,
    *seqs: int,
    epoch: int = 3,
    operations: int = 1,
    nbytes: int = 8,
) -> None:
    """An object with these operations, and a record of origins before them."""
    entries = []
    for seq in seqs:
        payload = b"%d" % seq * nbytes
        entry = Entry(RecordKind.OPERATION, [payload], (SCHEMA,))
        entry.seq = seq
        entries.append(entry)
    data = encode_object(
        number, LogIdentity(ID, "i", epoch), entries, ObjectNote(), [(RecordKind.ORIGINS, (b"o",))]
    )
    store.put(object_path(ID, epoch, number), data)


def ended(epoch: int, *numbers: int, last_seq: int = 0, on_disk: bool = True) -> FencedEpoch:
    return FencedEpoch(ID, epoch, numbers, (), (), last_seq, on_disk)


def segment(number: int, epoch: int, first_seq: int, last_seq: int) -> SegmentFacts:
    return SegmentFacts(
        number=number,
        file=f"{number:020d}.wal",
        ingester_id=ID,
        incarnation="i",
        epoch=epoch,
        first_seq=first_seq,
        last_seq=last_seq,
        records=1,
        operations=last_seq - first_seq + 1,
        bytes=1,
        state="sealed",
    )


def read_all(cursor: ObjectCursor) -> list[list[Record]]:
    chunks = []
    while (chunk := cursor.next_chunk()) is not None:
        chunks.append(chunk)
    assert cursor.next_chunk() is None
    return chunks


def seqs(records: list[Record]) -> list[int]:
    return [record.first_seq for record in records if record.kind == RecordKind.OPERATION]


def test_objects_without_a_log_on_disk_are_numbered_below_zero_oldest_first() -> None:
    found = left_objects([ended(3, 1, 2), ended(5, 4)], ())
    assert found == [
        LeftObject(object_path(ID, 3, 1), 3, -3, -3),
        LeftObject(object_path(ID, 3, 2), 3, -2, -2),
        LeftObject(object_path(ID, 5, 4), 5, -1, -1),
    ]


def test_objects_are_kept_as_long_as_the_segments_of_their_epoch() -> None:
    local = [segment(7, 3, 1, 5), segment(8, 3, 6, 9), segment(9, 5, 1, 4)]
    epochs = [ended(3, 1, last_seq=9), ended(4, 1), ended(5, 2, last_seq=5)]
    on_disk, elsewhere, partly = left_objects(epochs, local)
    assert (on_disk.segment, on_disk.kept_for) == (8, 8)
    assert (elsewhere.segment, elsewhere.kept_for) == (-2, -2)
    assert (partly.segment, partly.kept_for) == (-1, 9), "the disk lacks its newest operation"
    (unsynced,) = left_objects([ended(3, 1, last_seq=9, on_disk=False)], local)
    assert (unsynced.segment, unsynced.kept_for) == (-1, 8)


def test_records_come_object_by_object_and_oldest_first() -> None:
    store = MemoryStore()
    put_object(store, 1, 1, 2)
    put_object(store, 2)
    put_object(store, 3, 3, 5)
    found = left_objects([ended(3, 1, 2, 3)], ())
    chunks = read_all(ObjectCursor(store, found, (), bytearray))
    kinds = [[record.kind for record in chunk] for chunk in chunks]
    controls, schema, one = RecordKind.ORIGINS, RecordKind.SCHEMA, RecordKind.OPERATION
    assert kinds == [[controls, schema, one, one], [controls], [controls, schema, one, one]]
    assert [seqs(chunk) for chunk in chunks] == [[1, 2], [], [3, 5]]
    assert [{record.segment for record in chunk} for chunk in chunks] == [{-3}, {-2}, {-1}]
    assert {record.epoch for chunk in chunks for record in chunk} == {3}
    payload = chunks[0][2].payload
    assert isinstance(payload, bytearray)
    assert bytes(payload) == b"1" * 8


def test_what_the_log_on_disk_has_is_left_out() -> None:
    store = MemoryStore()
    put_object(store, 1, 1, 2, 6)
    put_object(store, 2, 2)
    put_object(store, 3, 10, 11)
    local = [segment(1, 3, 1, 5), segment(2, 3, 6, 10), segment(3, 4, 1, 50)]
    found = left_objects([ended(3, 1, 2, 3, last_seq=11)], local)
    chunks = read_all(ObjectCursor(store, found, local, bytearray))
    # Schemas have no sequences; the records of origins are on the disk, too.
    assert [seqs(chunk) for chunk in chunks] == [[], [], [11]]
    assert not [one for chunk in chunks for one in chunk if one.kind == RecordKind.ORIGINS]


def test_an_epoch_of_other_numbers_is_not_taken_for_one_on_disk() -> None:
    store = MemoryStore()
    put_object(store, 1, 1, 2, epoch=5)
    local = [segment(1, 3, 1, 50)]
    found = left_objects([ended(5, 1, last_seq=2)], local)
    (chunk,) = read_all(ObjectCursor(store, found, local, bytearray))
    assert (seqs(chunk), chunk[0].kind) == ([1, 2], RecordKind.ORIGINS)


def test_each_epoch_has_a_cursor() -> None:
    store = MemoryStore()
    put_object(store, 1, 1, epoch=3)
    put_object(store, 2, 9, epoch=3)
    put_object(store, 1, 4, epoch=6)
    found = left_objects([ended(3, 1, 2), ended(6, 1)], ())
    of_epochs = cursors(store, found, (), bytearray)
    read = {epoch: [seqs(chunk) for chunk in read_all(each)] for epoch, each in of_epochs.items()}
    assert read == {3: [[1], [9]], 6: [[4]]}


def test_a_damaged_or_missing_object_is_reported_at_its_place() -> None:
    store = MemoryStore()
    put_object(store, 1, 1)
    put_object(store, 2, 2)
    put_object(store, 3, 3)
    path = object_path(ID, 3, 2)
    found = left_objects([ended(3, 1, 2, 3)], ())
    whole = store.get(path)
    store.put(path, whole[:-1] + b"?")
    cursor = ObjectCursor(store, found, (), bytearray)
    assert cursor.next_chunk() is not None
    with pytest.raises(ObjectDamaged, match=path):
        cursor.next_chunk()
    cursor.close()
    store.delete(path)
    cursor = ObjectCursor(store, found, (), bytearray)
    assert cursor.next_chunk() is not None
    with pytest.raises(ObjectNotFound):
        cursor.next_chunk()
    cursor.close()


class SlowStore(MemoryStore):
    """Counts the reads that have begun and are not released yet; the first one may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.begun: list[str] = []
        self.allowed = 0
        self.failures = 0

    def get(self, path: str) -> bytes:
        with self.changed:
            self.begun.append(path)
            self.changed.notify_all()
            place = len(self.begun)
            assert self.changed.wait_for(lambda: place <= self.allowed, 20)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("503")
        return super().get(path)

    def allow(self, count: int) -> None:
        with self.changed:
            self.allowed = count
            self.changed.notify_all()

    def wait_begun(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, 20)


def begun_while_consuming(store: SlowStore, objects: int) -> list[int]:
    """How many reads were begun when each object had been consumed."""
    found = left_objects([ended(3, *range(1, objects + 1))], ())
    cursor = ObjectCursor(store, found, (), bytearray)
    begun = list[int]()
    store.allow(1 << 30)
    while cursor.next_chunk() is not None:
        begun.append(len(cursor._ahead) + len(begun) + 1)
    return begun


def test_several_objects_are_read_ahead_and_no_more() -> None:
    store = SlowStore()
    for number in range(1, 31):
        put_object(store, number, number)
    found = left_objects([ended(3, *range(1, 31))], ())
    cursor = ObjectCursor(store, found, (), bytearray)
    store.allow(2)
    assert cursor.next_chunk() is not None  # of unknown size: two are requested at first
    store.wait_begun(2)
    assert len(store.begun) == 2
    assert cursor.next_chunk() is not None
    store.wait_begun(1 + AHEAD)
    assert sorted(store.begun) == [each.path for each in found[: 1 + AHEAD]]
    store.allow(1 << 30)
    assert len(read_all(cursor)) == 28


def test_large_objects_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowStore()
    for number in range(1, 11):
        put_object(store, number, number, nbytes=20_000)
    size = len(store._objects[object_path(ID, 3, 1)][0])
    monkeypatch.setattr(reading, "AHEAD_BYTES", size // 2)
    assert max(at - done for done, at in enumerate(begun_while_consuming(store, 10), 1)) <= 1
    monkeypatch.setattr(reading, "AHEAD_BYTES", 4 * size)
    ahead = [at - done for done, at in enumerate(begun_while_consuming(store, 10), 1)]
    assert max(ahead) == 3


def test_a_store_that_is_away_is_asked_again() -> None:
    store = SlowStore()
    store.allow(1 << 30)
    store.failures = 2
    put_object(store, 1, 1)
    cursor = ObjectCursor(store, left_objects([ended(3, 1)], ()), (), bytearray)
    assert [seqs(chunk) for chunk in read_all(cursor)] == [[1]]
    assert len(store.begun) == 3
