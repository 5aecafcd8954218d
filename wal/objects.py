"""A log object: entries of a log as one object of a store, in the format of a sealed segment. Pure.

    _log/<ingester id>/<epoch:020d>/<number:020d>.wal        numbers from 1 in each epoch

    segment header │ OBJECT │ schemas and operations, by rising sequence │ seal

Objects are created conditionally and never changed. Each can be read without the others. The
OBJECT record holds an `ObjectNote` in MessagePack. It says up to which object the epoch's objects
were acknowledged when this one was made. With ``fenced_by`` the object is a fence: a later process
created it in the place of the epoch's next object, which the epoch's own process can then not
create. What follows a fence was never acknowledged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wal.errors import REPAIR_COMMAND, LogError, LogTooNew
from wal.format import (
    RECORD_HEADER_BYTES,
    SEAL_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    Body,
    LogIdentity,
    RecordHeader,
    RecordKind,
    SegmentHeader,
    decode_record_header,
    encode_record_header,
    encode_seal,
    encode_segment_header,
    make_body,
    record_bytes,
)
from wal.scan import Fault, scan

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wal.entry import Entry

FOLDER = "_log/"
_PATH = re.compile(r"_log/([A-Za-z0-9][A-Za-z0-9_.-]{0,127})/(\d{20})/(\d{20})\.wal")


def object_folder(ingester_id: str) -> str:
    """The folder of an ingester's log objects, with its final '/'."""
    return f"{FOLDER}{ingester_id}/"


def epoch_folder(ingester_id: str, epoch: int) -> str:
    """The folder of an epoch's log objects, with its final '/'."""
    return f"{object_folder(ingester_id)}{epoch:020d}/"


def object_path(ingester_id: str, epoch: int, number: int) -> str:
    """The path of a log object."""
    return f"{epoch_folder(ingester_id, epoch)}{number:020d}.wal"


class ObjectName(NamedTuple):
    """The parsed path of a log object."""

    ingester_id: str
    epoch: int
    number: int


def parse_object(path: str) -> ObjectName | None:
    """The parts of a log object's path; None for a foreign object."""
    match = _PATH.fullmatch(path)
    return None if match is None else ObjectName(match[1], int(match[2]), int(match[3]))


class DiskOnly(msgspec.Struct, frozen=True, array_like=True):
    """Operations of a table that are acknowledged and neither shipped nor in files."""

    namespace: str
    table: str
    operations: int
    last_seq: int


class FencedBy(msgspec.Struct, frozen=True, array_like=True):
    """The process that made a fence."""

    epoch: int
    incarnation: str


class ObjectNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a log object says about its epoch.

    `acknowledged` is the number of the newest object that had been acknowledged with all before it.
    `last_seq` is the highest sequence in this object and all earlier ones.
    `kept_from` is the oldest object that was needed then; earlier ones may be missing. `on_disk`:
    the operations were synced to the log's disk before the object was made.
    """

    acknowledged: int = 0
    last_seq: int = 0
    kept_from: int = 0
    on_disk: bool = False
    disk_only: tuple[DiskOnly, ...] = ()
    fenced_by: FencedBy | None = None


class ObjectDamaged(LogError):
    """The bytes of a log object fail their checks, or it does not exist.

    `help` is the command to run next.
    """

    def __init__(self, path: str, offset: int, expected: str, found: str) -> None:
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found
        name = parse_object(path)
        self.help = f"{REPAIR_COMMAND} --from-store {name.ingester_id if name else 'ID'}"
        super().__init__(
            f"log object {path} is damaged at offset {offset}: expected {expected}, found {found};"
            f" run: {self.help}"
        )


class ObjectRecord(NamedTuple):
    """A record of a log object; `payload` is a view of the object's bytes."""

    offset: int
    header: RecordHeader
    payload: memoryview


@dataclass(frozen=True)
class LogObject:
    """A log object whose checksums are right."""

    path: str
    header: SegmentHeader
    note: ObjectNote
    records: tuple[ObjectRecord, ...]
    """All records but the note and the seal."""

    @property
    def last_seq(self) -> int:
        """The last operation's sequence; the one before the header's without operations."""
        ends = [r.header.last_seq for r in self.records if r.header.kind == RecordKind.OPERATION]
        return max(ends, default=self.header.first_seq - 1)


Control = tuple[int, Sequence["Buffer"]]
"""The kind and the parts of a record that stands before the entries."""


class _Records:
    """Places the records of an object one behind the other, after its note."""

    def __init__(
        self, number: int, identity: LogIdentity, first_seq: int, note: ObjectNote
    ) -> None:
        self._number = number
        self._end = SEGMENT_HEADER_BYTES
        self._count = 0
        header = SegmentHeader(number, identity, first_seq)
        self._pieces: list[bytes | memoryview] = [encode_segment_header(header)]
        self.add(RecordKind.OBJECT, make_body([msgspec.msgpack.encode(note)]), first_seq)

    def add(self, kind: int, body: Body, seq: int, operations: int = 1) -> None:
        header = RecordHeader(kind, body.length, seq, self._end, body.crc, operations)
        self._pieces.append(encode_record_header(self._number, self._end, header))
        self._pieces += body.pieces
        self._end += record_bytes(body.length)
        self._count += 1

    def sealed(self, next_seq: int) -> bytes:
        seal = encode_seal(self._number, self._end, self._count, next_seq)
        return b"".join([*self._pieces, seal])


def encode_object(
    number: int,
    identity: LogIdentity,
    entries: Sequence[Entry],
    note: ObjectNote,
    controls: Sequence[Control] = (),
) -> bytes:
    """The bytes of a log object.

    Args:
        entries: those that the log has numbered, by rising sequence.
        controls: records to read before the entries.
    """
    next_seq = first_seq = entries[0].seq if entries else 1
    records = _Records(number, identity, first_seq, note)
    for kind, parts in controls:
        records.add(kind, make_body(parts), first_seq)
    preambles = set[object]()
    for entry in entries:
        for preamble in entry.preambles:
            if preamble not in preambles:
                preambles.add(preamble)
                records.add(preamble.kind, preamble.body, entry.seq)
        records.add(entry.kind, entry.body, entry.seq, entry.operations)
        next_seq = entry.seq + entry.operations
    return records.sealed(next_seq)


def encode_records(
    number: int,
    identity: LogIdentity,
    note: ObjectNote,
    found: Sequence[tuple[RecordHeader, Buffer]],
) -> bytes:
    """The bytes of a log object with records of another one, which was damaged."""
    next_seq = first_seq = found[0][0].first_seq if found else 1
    records = _Records(number, identity, first_seq, note)
    for header, payload in found:
        records.add(header.kind, make_body([payload]), header.first_seq, header.operations)
        if header.kind == RecordKind.OPERATION:
            next_seq = header.last_seq + 1
    return records.sealed(next_seq)


class ObjectBytes:
    """An object's bytes as a `wal.scan.Source`."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).toreadonly()

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]


def decode_object(data: Buffer, path: str) -> LogObject:
    """Check an object's bytes, and find its records.

    Raises:
        ObjectDamaged, LogTooNew: they are no log object of this name, or of a newer version.
    """
    name = parse_object(path)
    if name is None:
        raise ValueError(f"{path!r} names no log object")
    view = memoryview(data).toreadonly()
    verdict = scan(ObjectBytes(view), name.number)
    fault = verdict.fault
    if fault is None and not verdict.sealed:
        fault = Fault(verdict.end, "a seal", "none")
    if fault is not None and fault.too_new:
        raise LogTooNew(path, fault.offset, fault.found)
    if fault is not None or verdict.header is None:
        assert fault is not None
        raise ObjectDamaged(path, fault.offset, fault.expected, fault.found)
    identity = verdict.header.identity
    if (identity.ingester_id, identity.epoch) != (name.ingester_id, name.epoch):
        found = f"{identity.ingester_id!r}, epoch {identity.epoch}"
        raise ObjectDamaged(path, 0, "the ingester and epoch of its name", found)
    records = tuple(_records(view, name.number, verdict.end))
    if not records or records[0].header.kind != RecordKind.OBJECT:
        found = f"kind {records[0].header.kind}" if records else "none"
        raise ObjectDamaged(path, SEGMENT_HEADER_BYTES, "an OBJECT record", found)
    first, others = records[0], records[1:]
    try:
        note = msgspec.msgpack.decode(first.payload, type=ObjectNote)
    except msgspec.MsgspecError as exc:
        raise ObjectDamaged(path, first.offset, "a note", str(exc)) from exc
    return LogObject(path, verdict.header, note, others)


def _records(view: memoryview, number: int, end: int) -> Iterator[ObjectRecord]:
    """The records of a checked object, without its seal."""
    offset = SEGMENT_HEADER_BYTES
    while offset < end - SEAL_RECORD_BYTES:
        head = view[offset : offset + RECORD_HEADER_BYTES]
        header = decode_record_header(number, offset, head)
        assert header is not None, "the scan has found it"
        start = offset + RECORD_HEADER_BYTES
        yield ObjectRecord(offset, header, view[start : start + header.length])
        offset += record_bytes(header.length)
