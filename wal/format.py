"""The bytes of a segment. Pure: no files.

A segment is one header block, then records back to back, then zeros::

    0                512
    +----------------+--------+--------+-----+--------+- - - - - - - - -+
    | segment header | record | record | ... |  seal  |      zeros      |
    +----------------+--------+--------+-----+--------+- - - - - - - - -+

The zeros after a seal are cut off once other segments are open. A crash, a full disk or a stop may
come first, so any number of zeros is valid after a seal; other bytes there are damage.

    segment header (little-endian, one 512-byte sector, so that it is written whole)
      0  magic            8 bytes  "INGSTLOG"
      8  format version   u32
     12  header length    u32      512
     16  segment number   u64
     24  epoch            u64
     32  first sequence   u64      that the segment may hold
     40  id length        u16
     42  incarnation len  u16
     44  ingester id, incarnation (UTF-8), zeros
    508  CRC-32C          u32      of bytes 0..507

    record (starts at a multiple of 8)
      0  magic            u32
      4  kind             u16
      6  further          u16      operations in the record beside the first; 0 for other kinds
      8  length           u64      of the payload, without padding
     16  first sequence   u64      of the first operation; for other kinds, the next operation's
     24  synced_to        u64      bytes of this segment known durable when its group was formed
     32  payload CRC-32C  u32
     36  header CRC-32C   u32      of (segment number u64, offset u64, bytes 0..35)
     40  payload, then zeros up to a multiple of 8

The header's checksum covers the record's position. Stale bytes of another segment, moved bytes, and
a payload that contains a piece of a log never pass for a record.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"INGSTLOG"
SEGMENT_HEADER_BYTES = 512
RECORD_MAGIC = 0xD7_1C_0A_95
RECORD_HEADER_BYTES = 40
ALIGNMENT = 8
MAX_ID_BYTES = 255
MAX_INCARNATION_BYTES = 128
CRC_AT_ONCE_BYTES = 1 << 20
# A body up to this size is joined into one piece, because a copy is cheaper than many vectors.
JOIN_BYTES = 16 * 1024

_SEGMENT = struct.Struct("<8sIIQQQHH")
_CRC = struct.Struct("<I")
_PLACED = struct.Struct("<QQIIQQQI")  # segment number and offset, then the record header
_PLACE = struct.Struct("<QQ")
_RECORD = struct.Struct("<IIQQQII")
_SEAL = struct.Struct("<Q")
_NAME = re.compile(r"(\d{20})\.wal(?:\.(tmp|(?:torn|damaged)(?:-\d+)?))?")
_KIND_BITS = 16
_KIND_MASK = (1 << _KIND_BITS) - 1
MAX_OPERATIONS = 1 << 16
"""The most operations of one record."""
SEAL_RECORD_BYTES = RECORD_HEADER_BYTES + _SEAL.size


class RecordKind(IntEnum):
    """The kind of a record. Numbers never change; an unknown one stops replay."""

    SCHEMA = 1
    OPERATION = 2
    ORIGINS = 3
    OPENED = 4
    SHARED = 5
    LAYOUT_2 = 6
    OBJECT = 7
    """The first record of a log object (`wal.objects`); segments on disk have none."""
    SEAL = 255


KNOWN_KINDS = frozenset(int(kind) for kind in RecordKind)


@dataclass(frozen=True)
class LogIdentity:
    """The writer of a log: (ingester id, epoch, sequence) identifies an operation for ever."""

    ingester_id: str
    incarnation: str
    epoch: int


@dataclass(frozen=True)
class SegmentHeader:
    """The decoded header block of a segment."""

    number: int
    identity: LogIdentity
    first_seq: int


class RecordHeader(NamedTuple):
    """The decoded header of a record. `length` is the payload's, without padding."""

    kind: int
    length: int
    first_seq: int
    synced_to: int
    payload_crc: int
    operations: int = 1
    """1 for kinds other than OPERATION."""

    @property
    def last_seq(self) -> int:
        """The sequence of the record's last operation."""
        return self.first_seq + self.operations - 1


class Mismatch(NamedTuple):
    """Why bytes are not valid; `too_new` if a newer version may understand them."""

    expected: str
    found: str
    too_new: bool = False


class Body(NamedTuple):
    """A payload ready to be written: length, CRC-32C, flat pieces with padding."""

    length: int
    crc: int
    pieces: tuple[bytes | memoryview, ...]


class LogFileName(NamedTuple):
    """The parsed name of one of the log's files: the segment's number, and the suffix."""

    number: int
    suffix: str | None


def segment_name(number: int) -> str:
    """The file name of a segment; names sort like numbers."""
    return f"{number:020d}.wal"


def parse_name(name: str) -> LogFileName | None:
    """The parts of a file's name in the log's folder; None for a foreign name.

    `suffix` is None for a segment, else ``tmp``, ``torn``, ``torn-2``, ``damaged``, ...
    """
    match = _NAME.fullmatch(name)
    return None if match is None else LogFileName(int(match[1]), match[2])


def padded(length: int) -> int:
    """`length` rounded up to the records' alignment."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def record_bytes(length: int) -> int:
    """The bytes that a record with a payload of `length` takes in a segment."""
    return RECORD_HEADER_BYTES + padded(length)


def make_body(parts: Iterable[Buffer]) -> Body:
    """The payload that `parts` form together.

    Small payloads are copied into one piece, large ones referenced. The checksum releases the GIL
    only for very large parts: for smaller ones, reacquiring it takes longer than the checksum.
    """
    views = [memoryview(part) for part in parts]
    flat = [
        view if view.format == "B" and view.ndim == 1 else view.cast("B")
        for view in views
        if view.nbytes
    ]
    length, crc = 0, 0
    for view in flat:
        length += len(view)
        crc = crc32c(view, crc, -1 if len(view) > CRC_AT_ONCE_BYTES else 0)
    padding = bytes(padded(length) - length)
    if length <= JOIN_BYTES:
        return Body(length, crc, (b"".join([*flat, padding]),) if length else ())
    return Body(length, crc, (*flat, padding) if padding else tuple(flat))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The header block; ValueError if a name is too long for it."""
    ingester_id = header.identity.ingester_id.encode()
    incarnation = header.identity.incarnation.encode()
    if len(ingester_id) > MAX_ID_BYTES or len(incarnation) > MAX_INCARNATION_BYTES:
        raise ValueError(
            f"ingester id has {len(ingester_id)} bytes (at most {MAX_ID_BYTES}), "
            f"incarnation {len(incarnation)} (at most {MAX_INCARNATION_BYTES})"
        )
    fixed = _SEGMENT.pack(
        SEGMENT_MAGIC,
        FORMAT_VERSION,
        SEGMENT_HEADER_BYTES,
        header.number,
        header.identity.epoch,
        header.first_seq,
        len(ingester_id),
        len(incarnation),
    )
    block = (fixed + ingester_id + incarnation).ljust(SEGMENT_HEADER_BYTES - _CRC.size, b"\0")
    return block + _CRC.pack(crc32c(block))


def decode_segment_header(block: Buffer) -> SegmentHeader | Mismatch:
    """The header in the first bytes of a segment, or why they are not a header."""
    data = bytes(block)
    if len(data) < SEGMENT_HEADER_BYTES:
        return Mismatch(f"a header of {SEGMENT_HEADER_BYTES} bytes", f"{len(data)} bytes")
    magic, version, _, number, epoch, first_seq, id_length, incarnation_length = (
        _SEGMENT.unpack_from(data)
    )
    if magic != SEGMENT_MAGIC:
        return Mismatch(f"magic {SEGMENT_MAGIC!r}", f"{magic!r}")
    if version > FORMAT_VERSION:
        return Mismatch(f"format {FORMAT_VERSION} or older", f"format {version}", too_new=True)
    body, (stored,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    if (actual := crc32c(body)) != stored:
        return Mismatch(f"header CRC-32C {stored:08x}", f"{actual:08x}")
    # The checksum is right, so no crash caused this. It is reported as a mismatch all the same.
    if id_length > MAX_ID_BYTES or incarnation_length > MAX_INCARNATION_BYTES:
        return Mismatch("names of at most 255 and 128 bytes", f"{id_length}, {incarnation_length}")
    middle = _SEGMENT.size + id_length
    try:
        ingester_id = data[_SEGMENT.size : middle].decode()
        incarnation = data[middle : middle + incarnation_length].decode()
    except UnicodeDecodeError:
        return Mismatch("names in UTF-8", data[_SEGMENT.size : middle + incarnation_length].hex())
    return SegmentHeader(number, LogIdentity(ingester_id, incarnation, epoch), first_seq)


def encode_record_header(number: int, offset: int, header: RecordHeader) -> bytes:
    """The bytes of a record header at `offset` of segment `number`."""
    kind, length, first_seq, synced_to, payload_crc, operations = header
    kinds = kind | (operations - 1) << _KIND_BITS
    placed = _PLACED.pack(
        number, offset, RECORD_MAGIC, kinds, length, first_seq, synced_to, payload_crc
    )
    return placed[_PLACE.size :] + _CRC.pack(crc32c(placed))


def decode_record_header(number: int, offset: int, block: Buffer) -> RecordHeader | None:
    """The record header in `block`; None if it is not valid for this segment and offset."""
    if memoryview(block).nbytes < RECORD_HEADER_BYTES:
        return None
    magic, kinds, length, first_seq, synced_to, payload_crc, crc = _RECORD.unpack_from(block)
    if magic != RECORD_MAGIC:
        return None
    placed = _PLACED.pack(
        number, offset, RECORD_MAGIC, kinds, length, first_seq, synced_to, payload_crc
    )
    if crc32c(placed) != crc:
        return None
    if kinds & _KIND_MASK != RecordKind.OPERATION:
        # Not split: a newer version may use the upper bits of kinds other than OPERATION.
        return RecordHeader(kinds, length, first_seq, synced_to, payload_crc)
    operations = (kinds >> _KIND_BITS) + 1
    return RecordHeader(RecordKind.OPERATION, length, first_seq, synced_to, payload_crc, operations)


def encode_seal(number: int, offset: int, records: int, next_seq: int) -> bytes:
    """The final record at `offset`: `records` precede it, and all of them are durable."""
    payload = _SEAL.pack(records)
    header = RecordHeader(RecordKind.SEAL, _SEAL.size, next_seq, offset, crc32c(payload))
    return encode_record_header(number, offset, header) + payload


def decode_seal(payload: Buffer) -> int:
    """The number of records that the seal counts."""
    return int(_SEAL.unpack(payload)[0])
