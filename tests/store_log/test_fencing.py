"""The end of an earlier epoch's log, without other processes (`test_interleavings` has those)."""

from __future__ import annotations

import pytest

from ingester.store_log.fencing import (
    epochs_with_objects,
    fence_epoch,
    fence_epochs,
)
from persist.manifest import WriterIdentity, claim_epoch, newest_epoch, tell_stop
from tests.drivers.memory_store import MemoryStore
from wal import Entry, LogIdentity, ObjectDamaged, RecordKind
from wal.objects import (
    DiskOnly,
    FencedBy,
    ObjectNote,
    decode_object,
    encode_object,
    object_path,
)

ID = "pod-0"
BY = WriterIdentity(ID, "successor", 9)
LOST = (DiskOnly("ns", "t", 4, 12),)


def put_object(
    store: MemoryStore,
    number: int,
    acknowledged: int = 0,
    *,
    epoch: int = 3,
    seq: int = 0,
    kept_from: int = 0,
    disk_only: tuple[DiskOnly, ...] = (),
) -> None:
    entries = []
    if seq:
        entries = [Entry(RecordKind.OPERATION, [b"x"])]
        entries[0].seq = seq
    note = ObjectNote(
        acknowledged=acknowledged,
        last_seq=seq,
        kept_from=kept_from,
        on_disk=True,
        disk_only=disk_only,
    )
    data = encode_object(number, LogIdentity(ID, "old", epoch), entries, note)
    store.put(object_path(ID, epoch, number), data)


def fence_at(store: MemoryStore, number: int, epoch: int = 3) -> FencedBy | None:
    path = object_path(ID, epoch, number)
    return decode_object(store.get(path), path).note.fenced_by


def test_a_fence_stands_where_the_next_object_would_be() -> None:
    store = MemoryStore()
    put_object(store, 1)
    put_object(store, 2, 1, seq=20)
    put_object(store, 3, 1, seq=30, disk_only=LOST)
    ended = fence_epoch(store, 3, BY)
    assert (ended.numbers, ended.behind) == ((1, 2, 3), ())
    assert (ended.disk_only, ended.last_seq, ended.on_disk) == (LOST, 30, True)
    assert fence_at(store, 4) == FencedBy(9, "successor")
    assert fence_epoch(store, 3, WriterIdentity(ID, "other", 10)) == ended, "a fence stays"
    assert len(list(store.list("_log/"))) == 4


def test_what_follows_the_first_missing_number_was_not_acknowledged() -> None:
    store = MemoryStore()
    for number in (1, 2, 4, 5):
        put_object(store, number, seq=10 * number, disk_only=LOST if number == 5 else ())
    ended = fence_epoch(store, 3, BY)
    assert fence_at(store, 3) is not None
    assert (ended.numbers, ended.behind) == ((1, 2), (4, 5))
    assert (ended.last_seq, ended.disk_only) == (20, ())


def test_deleted_objects_do_not_hide_the_end() -> None:
    store = MemoryStore()
    put_object(store, 6, 4)
    put_object(store, 7, 6)
    ended = fence_epoch(store, 3, BY)
    assert fence_at(store, 8) is not None
    assert ended.numbers == (6, 7)


def test_a_log_whose_objects_are_all_deleted_keeps_its_fence() -> None:
    store = MemoryStore()
    put_object(store, 1)
    assert fence_epoch(store, 3, BY).numbers == (1,)
    store.delete(object_path(ID, 3, 1))
    ended = fence_epoch(store, 3, BY)
    assert (ended.numbers, ended.behind, ended.disk_only, ended.last_seq) == ((), (), (), 0)
    assert epochs_with_objects(store, ID, 9) == [3]


def test_a_missing_object_before_the_fence_is_damage() -> None:
    store = MemoryStore()
    for number in (1, 2, 3):
        put_object(store, number)
    fence_epoch(store, 3, BY)
    store.delete(object_path(ID, 3, 2))
    with pytest.raises(ObjectDamaged, match=object_path(ID, 3, 2)):
        fence_epoch(store, 3, BY)


def test_a_deleted_object_that_comes_back_late_is_not_needed() -> None:
    """A PUT that timed out may be carried out after its object was acknowledged and deleted."""
    store = MemoryStore()
    put_object(store, 2, 1, seq=2)
    for number in (7, 8, 9):
        put_object(store, number, number - 1, seq=number, kept_from=7)
    ended = fence_epoch(store, 3, BY)
    assert (ended.numbers, ended.behind) == ((7, 8, 9), (2,))


def test_nothing_of_an_epoch_that_stopped_cleanly_is_needed() -> None:
    """It deletes its objects in any order, and may have been killed meanwhile."""
    store = MemoryStore()
    for number in (1, 2, 5):
        put_object(store, number, seq=10 * number)
    tell_stop(store, ID, 3, {})
    ended = fence_epoch(store, 3, BY)
    assert (ended.numbers, ended.behind) == ((), (1, 2, 5))
    assert len(list(store.list("_log/"))) == 3, "no fence"


def test_a_damaged_newest_object_stops_the_start() -> None:
    store = MemoryStore()
    put_object(store, 1)
    store.put(object_path(ID, 3, 2), b"damaged")
    with pytest.raises(ObjectDamaged, match=object_path(ID, 3, 2)):
        fence_epochs(store, BY)


def test_all_earlier_epochs_end_and_no_later_or_foreign_one() -> None:
    store = MemoryStore()
    for epoch in (2, 5, 9, 11):
        put_object(store, 1, epoch=epoch)
    store.put("_log/pod-0/heartbeat.json", b"{}")
    store.put(f"_log/pod-0/{6:020d}/notes.txt", b"foreign")
    store.put(object_path("pod-00", 4, 1), b"another ingester's")
    assert [ended.epoch for ended in fence_epochs(store, BY)] == [2, 5]
    assert fence_at(store, 2, epoch=5) == FencedBy(9, "successor")
    assert len(list(store.list("_log/"))) == 4 + 2 + 3


def test_the_first_object_counts_until_a_later_epoch_is_claimed() -> None:
    store = MemoryStore()
    for _ in range(2):
        claim_epoch(store, ID, 1, {})
    tell_stop(store, ID, 2, {})
    claim_epoch(store, "pod-1", 7, {})
    assert newest_epoch(store, ID, 3) == 0
    claim_epoch(store, ID, 1, {})
    assert newest_epoch(store, ID, 3) == 3
