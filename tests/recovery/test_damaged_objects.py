"""Damaged and missing log objects stop an adoption, are named, and can be repaired."""

from __future__ import annotations

import itertools

import pytest

from ingester.store_log.fencing import fence_epochs
from ingester.store_log.inspection import inspect_objects, repair_objects, verify_objects
from persist.manifest import WriterIdentity
from persist.store import ObjectStore
from tests.drivers.memory_store import MemoryStore
from wal import Entry, LogIdentity, ObjectDamaged, Preamble, RecordKind
from wal.objects import ObjectNote, decode_object, encode_object, object_path

ID = "lost"
FIRST = LogIdentity(ID, "first", 1)
SECOND = WriterIdentity(ID, "second", 2)
SCHEMA = Preamble(RecordKind.SCHEMA, (b"schema",))


def put_object(store: ObjectStore, number: int, acknowledged: int, *, operations: int = 3) -> str:
    """An object with operations of 100 bytes, of which those before it have sequences below."""
    entries = []
    for at in range(operations):
        entry = Entry(RecordKind.OPERATION, (bytes([65 + at]) * 100,), preambles=(SCHEMA,))
        entry.seq = number * 10 + at
        entries.append(entry)
    path = object_path(ID, 1, number)
    store.create(path, encode_object(number, FIRST, entries, ObjectNote(acknowledged=acknowledged)))
    return path


def damage(store: ObjectStore, path: str, wanted: bytes, *, after: int = 0) -> None:
    """Flip the first byte of some bytes of an object."""
    data = bytearray(store.get(path))
    data[data.index(wanted, after)] ^= 1
    store.put(path, data)


def sequences(store: ObjectStore, path: str) -> list[int]:
    found = decode_object(store.get(path), path).records
    return [r.header.first_seq for r in found if r.header.kind == RecordKind.OPERATION]


def test_a_damaged_operation_is_left_out_and_the_rest_of_the_object_kept() -> None:
    store = MemoryStore()
    paths = [put_object(store, number, number - 1) for number in (4, 5, 6)]
    fence_epochs(store, SECOND)
    before = store.get(paths[1])
    damage(store, paths[1], b"B" * 100)
    damaged = store.get(paths[1])
    assert before != damaged
    (finding,) = verify_objects(store, ID)
    assert (finding.severity, finding.file) == ("damage", paths[1])
    assert finding.help == f"ingester wal repair --from-store {ID}"
    assert [one.state for one in inspect_objects(store, ID)] == [
        "stored",
        "damaged",
        "stored",
        "fence",
    ]
    with pytest.raises(ObjectDamaged, match="ingester wal repair --from-store lost"):
        read_all(store)
    (repaired,) = repair_objects(store, ID)
    assert (repaired.operations_saved, repaired.note_saved) == (2, True)
    assert repaired.moved_to is not None
    assert store.get(repaired.moved_to) == damaged
    assert sequences(store, paths[1]) == [50, 52]
    assert verify_objects(store, ID) == []
    assert repair_objects(store, ID) == []
    assert [epoch.numbers for epoch in fence_epochs(store, SECOND)] == [(4, 5, 6)]


def read_all(store: ObjectStore) -> None:
    """Read the log as a start and an adoption do."""
    for ended in fence_epochs(store, SECOND):
        for number in ended.numbers:
            decode_object(store.get(ended.path(number)), ended.path(number))


@pytest.mark.parametrize(
    ("number", "how"),
    # Without its oldest object or its fence a log is a whole one.
    [*itertools.product((4, 5, 6, 7), ("note", "header", "cut")), (5, "gone"), (6, "gone")],
)
def test_a_log_ends_where_it_ended_after_the_repair_of_any_object(number: int, how: str) -> None:
    """Objects 1 to 3 were deleted, 4 to 6 have operations, 7 is the fence."""
    store = MemoryStore()
    for each in (4, 5, 6):
        put_object(store, each, each - 1)
    fence_epochs(store, SECOND)
    path = object_path(ID, 1, number)
    data = bytearray(store.get(path))
    if how == "gone":
        store.delete(path)
    elif how == "cut":
        store.put(path, data[: len(data) // 2])
    else:
        data[100 if how == "header" else 540] ^= 1
        store.put(path, data)
    assert [finding.file for finding in verify_objects(store, ID)] == [path]
    with pytest.raises(ObjectDamaged):
        read_all(store)
    assert [one.path for one in repair_objects(store, ID)] == [path]
    assert verify_objects(store, ID) == []
    (ended,) = fence_epochs(store, SECOND)
    kept = [each for each in ended.numbers if each < 7]
    assert kept == [4, 5, 6]
    found = [seq for each in kept for seq in sequences(store, object_path(ID, 1, each))]
    whole = [each * 10 + at for each in (4, 5, 6) for at in range(3)]
    lost = set(whole) - set(found)
    assert all(seq // 10 == number for seq in lost)
    if how in ("header", "note"):
        assert not lost


def test_what_lies_behind_the_fence_is_only_noted() -> None:
    store = MemoryStore()
    put_object(store, 1, 0)
    put_object(store, 3, 1)
    fence_epochs(store, SECOND)
    assert [one.state for one in inspect_objects(store, ID)] == [
        "stored",
        "fence",
        "behind the fence",
    ]
    (finding,) = verify_objects(store, ID)
    assert (finding.severity, finding.file) == ("note", object_path(ID, 1, 3))
