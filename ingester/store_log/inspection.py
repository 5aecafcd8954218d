"""The operator's tools for log objects: inspect and verify only read, repair lets a start continue.

A repair deletes nothing. The bytes of a damaged object are kept beside it, and an object of its
good records takes its place; an empty one takes the place of a missing one::

    00000000000000000012.wal            the good records
    00000000000000000012.wal.damaged    what was there before

The place is never empty meanwhile, so a paused process of that epoch can still not create the
object there. A repair that crashed can be run again (tests/store_log/test_inspection.py). Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import msgspec

from ingester.store_log.fencing import FencedEpoch, judge
from persist.store import AlreadyExists, ObjectStore
from wal import LogIdentity, LogTooNew, RecordKind
from wal.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
)
from wal.inspection import LogFinding, good_records
from wal.objects import (
    LogObject,
    ObjectBytes,
    ObjectDamaged,
    ObjectNote,
    decode_object,
    encode_records,
    object_folder,
    object_path,
    parse_object,
)

ObjectState = Literal["stored", "behind the fence", "fence", "damaged", "newer"]


class ObjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one log object. `last_seq` is below `first_seq` if it has no operation."""

    path: str
    epoch: int
    number: int
    state: ObjectState
    first_seq: int = 0
    last_seq: int = -1
    operations: int = 0
    bytes: int
    acknowledged: int = 0
    """The newest object of its epoch that was acknowledged when this one was made."""
    problem: str | None = None


class RepairedObject(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the repair of one object; `moved_to` is None if it was missing."""

    path: str
    problem: str
    moved_to: str | None
    operations_saved: int = 0
    note_saved: bool = False
    """Whether it still says what it said of its epoch; otherwise the objects before it do."""


class _Epoch:
    """The objects of an epoch: their facts, and their contents without records or what is wrong."""

    def __init__(self, ingester_id: str, epoch: int) -> None:
        self._place = (ingester_id, epoch)
        self.facts: list[ObjectFacts] = []
        self.good: dict[int, LogObject] = {}
        self.bad: dict[int, ObjectDamaged | LogTooNew] = {}

    def path(self, number: int) -> str:
        return object_path(*self._place, number)

    def ended(self) -> FencedEpoch | None:
        """How its log ended; None if no fence is known."""
        found = judge(self._place, sorted(self.good), self.good.__getitem__)
        return found if isinstance(found, FencedEpoch) else None

    def acknowledged_before(self, number: int) -> int:
        """The newest object that those before this one call acknowledged, at least."""
        known = [*self.good, *self.bad]
        notes = [each.note.acknowledged for n, each in self.good.items() if n < number]
        # What was deleted had been acknowledged.
        return max([*notes, min(known) - 1])


def inspect_objects(store: ObjectStore, ingester_id: str) -> list[ObjectFacts]:
    """The facts of each log object, by epoch and number."""
    found = []
    for epoch in _epochs(store, ingester_id):
        ended = epoch.ended()
        for each in epoch.facts:
            if each.state == "stored" and ended is not None and each.number in ended.behind:
                each = msgspec.structs.replace(each, state="behind the fence")
            found.append(each)
    return found


def _epochs(store: ObjectStore, ingester_id: str) -> list[_Epoch]:
    found: dict[int, _Epoch] = {}
    for info in store.list(object_folder(ingester_id)):
        name = parse_object(info.path)
        if name is None:
            continue
        epoch = found.setdefault(name.epoch, _Epoch(ingester_id, name.epoch))
        facts = ObjectFacts(
            path=info.path, epoch=name.epoch, number=name.number, state="stored", bytes=info.bytes
        )
        try:
            content = decode_object(store.get(info.path), info.path)
        except (ObjectDamaged, LogTooNew) as exc:
            epoch.bad[name.number] = exc
            state: ObjectState = "newer" if isinstance(exc, LogTooNew) else "damaged"
            epoch.facts.append(msgspec.structs.replace(facts, state=state, problem=str(exc)))
            continue
        epoch.good[name.number] = replace(content, records=())
        epoch.facts.append(
            msgspec.structs.replace(
                facts,
                state="stored" if content.note.fenced_by is None else "fence",
                first_seq=content.header.first_seq,
                last_seq=content.last_seq,
                operations=_operations(content),
                acknowledged=content.note.acknowledged,
            )
        )
    return list(found.values())


def _operations(content: LogObject) -> int:
    counts = (r.header.operations for r in content.records if r.header.kind == RecordKind.OPERATION)
    return sum(counts)


def verify_objects(store: ObjectStore, ingester_id: str) -> list[LogFinding]:
    """Everything that a start or an adoption would refuse, or leave out as never acknowledged."""
    found = []
    for epoch in _epochs(store, ingester_id):
        for bad in epoch.bad.values():
            found.append(_finding(bad))
        ended = epoch.ended()
        if ended is not None and ended.missing is not None and ended.missing not in epoch.bad:
            missing = ObjectDamaged(epoch.path(ended.missing), 0, "a log object", "none")
            found.append(_finding(missing))
        for number in () if ended is None else ended.behind:
            found.append(
                LogFinding(
                    severity="note",
                    file=epoch.path(number),
                    offset=0,
                    expected="nothing behind the fence",
                    found="an object that was never acknowledged",
                    help="nothing: an adoption or `ingester manifest gc` deletes it",
                )
            )
    return found


def _finding(problem: ObjectDamaged | LogTooNew) -> LogFinding:
    if isinstance(problem, LogTooNew):
        return LogFinding(
            severity="newer",
            file=str(problem.file),
            offset=problem.offset,
            expected="a format of this version",
            found=problem.found,
            help="start the version that wrote it",
        )
    return LogFinding(
        severity="damage",
        file=problem.path,
        offset=problem.offset,
        expected=problem.expected,
        found=problem.found,
        help=problem.help,
    )


def repair_objects(store: ObjectStore, ingester_id: str) -> list[RepairedObject]:
    """Replace damaged objects by their good records, and missing ones by empty ones.

    Raises:
        LogTooNew: a newer version wrote one of them; nothing was changed.
        StoreUnavailable: run it again.
    """
    epochs = _epochs(store, ingester_id)
    for epoch in epochs:
        for bad in epoch.bad.values():
            if isinstance(bad, LogTooNew):
                raise bad
    return [each for epoch in epochs for each in _repair_epoch(store, epoch)]


def _repair_epoch(store: ObjectStore, epoch: _Epoch) -> Iterator[RepairedObject]:
    for number, problem in sorted(epoch.bad.items()):
        path = epoch.path(number)
        data = store.get(path)
        moved_to = _keep(store, path, data)
        note = ObjectNote(acknowledged=epoch.acknowledged_before(number))
        made, has_note = rebuilt(data, path, note)
        store.put(path, made)
        content = decode_object(made, path)
        epoch.good[number] = replace(content, records=())
        yield RepairedObject(
            path=path,
            problem=str(problem),
            moved_to=moved_to,
            operations_saved=_operations(content),
            note_saved=has_note,
        )
    while (ended := epoch.ended()) is not None and ended.missing is not None:
        path = epoch.path(ended.missing)
        note = ObjectNote(acknowledged=epoch.acknowledged_before(ended.missing))
        made, _ = rebuilt(b"", path, note)
        store.create(path, made)
        epoch.good[ended.missing] = decode_object(made, path)
        yield RepairedObject(path=path, problem="it does not exist", moved_to=None)


def _keep(store: ObjectStore, path: str, data: bytes) -> str:
    """Keep bytes beside an object; return their path."""
    count, kept = 1, f"{path}.damaged"
    while True:
        try:
            store.create(kept, data)
        except AlreadyExists:
            if store.get(kept) != data:
                count, kept = count + 1, f"{path}.damaged-{count + 1}"
                continue
        return kept


def rebuilt(data: bytes, path: str, note: ObjectNote) -> tuple[bytes, bool]:
    """An object of the good records of a damaged one, and whether its own note is among them.

    Args:
        note: what it says of its epoch otherwise.
    """
    name = parse_object(path)
    assert name is not None
    identity = LogIdentity(name.ingester_id, "", name.epoch)
    header = decode_segment_header(data[:SEGMENT_HEADER_BYTES])
    if isinstance(header, SegmentHeader):
        if (header.identity.ingester_id, header.identity.epoch) != (name.ingester_id, name.epoch):
            data = b""  # another epoch's object under this name: nothing of it belongs here
        else:
            identity = header.identity
    found, has_note, last_seq = [], False, -1
    source = ObjectBytes(data)
    for offset, record in good_records(source, name.number):
        payload = bytes(source.read(offset + RECORD_HEADER_BYTES, record.length))
        if record.kind == RecordKind.OBJECT:
            note, has_note = msgspec.msgpack.decode(payload, type=ObjectNote), True
        elif record.kind == RecordKind.OPERATION and record.first_seq <= last_seq:
            continue
        elif record.kind != RecordKind.SEAL:
            found.append((record, payload))
            last_seq = record.last_seq if record.kind == RecordKind.OPERATION else last_seq
    return encode_records(name.number, identity, note, found), has_note
