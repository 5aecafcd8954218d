"""Decides from a segment's bytes alone whether it is whole, torn or damaged. Pure.

A segment's records are walked from the header. If their checks fail at X, one question decides::

    is there a later valid header of this segment whose synced_to lies beyond X?

Yes: X was durable, so possibly acknowledged, before that record was written. It is damage. No:
everything from X on belongs to a group that was never acknowledged, because unsynced pages reach
the disk in any order. In the last segment that is a torn tail; a sealed one has no tail
(tests/wal/test_torn_tail.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from wal.format import (
    ALIGNMENT,
    KNOWN_KINDS,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEAL_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    Mismatch,
    RecordHeader,
    RecordKind,
    SegmentHeader,
    decode_record_header,
    decode_seal,
    decode_segment_header,
    record_bytes,
)

# The most that one `Source.read` is asked for.
READ_BYTES = 1 << 20
State = Literal["sealed", "open", "torn", "headerless", "damaged", "newer"]


class Source(Protocol):
    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, length: int) -> memoryview:
        """A view of up to `length` (at most `READ_BYTES`) bytes; fewer only at the end.

        The view is valid until the next read.
        """


class Fault(NamedTuple):
    """Where a segment fails its checks, and why."""

    offset: int
    expected: str
    found: str
    too_new: bool = False


class Located(NamedTuple):
    """A valid record and its offset."""

    offset: int
    header: RecordHeader


@dataclass
class ScanVerdict:
    """The result of the scan of one segment.

    `end` is the end of the good records (after the seal, if there is one). `evidence` is the offset
    of a record which proves that the place of `fault` was durable.
    """

    number: int
    size: int
    header: SegmentHeader | None = None
    end: int = 0
    records: int = 0
    operations: int = 0
    first_seq: int = 0
    last_seq: int = -1
    sealed: bool = False
    fault: Fault | None = None
    evidence: int | None = None

    def state(self, *, last: bool) -> State:
        """The segment's state; `last` if no segment with a header follows."""
        if self.fault is not None and self.fault.too_new:
            return "newer"
        proven = self.evidence is not None or self.sealed or not last
        if self.header is None:
            return "damaged" if proven else "headerless"
        if self.fault is not None:
            return "damaged" if proven else "torn"
        if self.sealed:
            return "sealed"
        return "open" if last else "damaged"


def scan(source: Source, number: int) -> ScanVerdict:
    """Walk a whole segment and check every byte that counts."""
    verdict = ScanVerdict(number, source.size)
    header = decode_segment_header(source.read(0, SEGMENT_HEADER_BYTES))
    if isinstance(header, SegmentHeader) and header.number != number:
        # A whole header of another segment: the file was renamed, which no crash does.
        expected = f"segment {number}, as the file is named"
        verdict.fault = Fault(0, expected, f"segment {header.number}")
        verdict.evidence = 0
        return verdict
    if isinstance(header, Mismatch):
        verdict.fault = Fault(0, header.expected, header.found, header.too_new)
        verdict.evidence = find_record(source, number, SEGMENT_HEADER_BYTES, beyond=-1)
        return verdict
    verdict.header = header
    verdict.end = SEGMENT_HEADER_BYTES
    verdict.first_seq, verdict.last_seq = header.first_seq, header.first_seq - 1
    _walk(source, verdict)
    fault = verdict.fault
    if fault is not None and verdict.evidence is None and not verdict.sealed:
        verdict.evidence = find_record(
            source, number, fault.offset + ALIGNMENT, beyond=fault.offset
        )
    return verdict


def _walk(source: Source, verdict: ScanVerdict) -> None:
    """Follow the records to the seal, the end or the first fault, and count them."""
    while not verdict.sealed:
        record = read_record(source, verdict.number, verdict.end)
        if isinstance(record, Fault):
            verdict.fault = record
        if not isinstance(record, RecordHeader):
            return
        if (contradiction := _contradiction(source, verdict, record)) is not None:
            # Its checksums are good, so a crash cannot have made it: it is its own evidence.
            verdict.fault, verdict.evidence = contradiction, verdict.end
            return
        if record.kind == RecordKind.SEAL:
            verdict.sealed = True
        else:
            verdict.records += 1
        if record.kind == RecordKind.OPERATION:
            if verdict.operations == 0:
                verdict.first_seq = record.first_seq
            verdict.operations += record.operations
            verdict.last_seq = record.last_seq
        verdict.end += record_bytes(record.length)
    if (behind := first_nonzero(source, verdict.end)) is not None:
        verdict.fault = Fault(verdict.end, "nothing behind the seal", f"data at {behind}")


def _contradiction(source: Source, verdict: ScanVerdict, record: RecordHeader) -> Fault | None:
    """The reason why a record with good checksums cannot be here, or None."""
    offset = verdict.end
    if record.kind not in KNOWN_KINDS:
        return Fault(offset, "a known kind of record", f"kind {record.kind}", too_new=True)
    if record.kind == RecordKind.OPERATION and record.first_seq <= verdict.last_seq:
        return Fault(offset, f"a sequence above {verdict.last_seq}", f"{record.first_seq}")
    if record.kind == RecordKind.SEAL:
        if record.length != SEAL_RECORD_BYTES - RECORD_HEADER_BYTES:
            return Fault(offset, "a seal of 8 bytes", f"{record.length} bytes")
        counted = decode_seal(source.read(offset + RECORD_HEADER_BYTES, record.length))
        if counted != verdict.records:
            return Fault(offset, f"{counted} records before the seal", f"{verdict.records}")
    return None


def read_record(source: Source, number: int, offset: int) -> RecordHeader | Fault | None:
    """The valid record at `offset`; None if only zeros or nothing follow; else the fault."""
    head = source.read(offset, RECORD_HEADER_BYTES)
    record = decode_record_header(number, offset, head)
    if record is None:
        found = bytes(head[:RECORD_HEADER_BYTES])
        data_at = first_nonzero(source, offset)
        if data_at is None:
            return None
        if not any(found):
            return Fault(offset, "a record, or zeros to the end", f"zeros, then data at {data_at}")
        return Fault(offset, "a record header that checks out", found.hex())
    start = offset + RECORD_HEADER_BYTES
    if start + record.length > source.size:
        return Fault(offset, f"a payload of {record.length} bytes", f"{source.size - start}")
    actual = payload_crc(source, start, record.length)
    if actual != record.payload_crc:
        return Fault(offset, f"payload CRC-32C {record.payload_crc:08x}", f"{actual:08x}")
    return record


def payload_crc(source: Source, start: int, length: int) -> int:
    crc, end = 0, start + length
    while start < end:
        piece = source.read(start, min(end - start, READ_BYTES))
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc


def first_nonzero(source: Source, start: int) -> int | None:
    """The offset of the first byte from `start` on that is not zero."""
    while start < source.size:
        piece = np.frombuffer(source.read(start, READ_BYTES), dtype=np.uint8)
        if piece.any():
            return start + int((piece != 0).argmax())
        start += len(piece)
    return None


def find_record(source: Source, number: int, start: int, *, beyond: int) -> int | None:
    """The offset of the first valid header from `start` on with ``synced_to > beyond``."""
    for located in find_headers(source, number, start):
        if located.header.synced_to > beyond:
            return located.offset
    return None


def find_headers(source: Source, number: int, start: int) -> Iterator[Located]:
    """Every valid record header at an aligned offset from `start` on; payloads are not read.

    Only offsets that hold the magic are decoded, and finding them is vectorised: a whole segment
    takes milliseconds.
    """
    start += -start % ALIGNMENT
    while start + RECORD_HEADER_BYTES <= source.size:
        piece = source.read(start, READ_BYTES)
        words = np.frombuffer(piece[: len(piece) // ALIGNMENT * ALIGNMENT], dtype="<u4")
        for hit in np.flatnonzero(words[::2] == RECORD_MAGIC).tolist():
            offset = start + hit * ALIGNMENT
            header = decode_record_header(number, offset, source.read(offset, RECORD_HEADER_BYTES))
            if header is not None:
                yield Located(offset, header)
        start += READ_BYTES
