"""Records that are valid individually but contradict each other, and fast header searches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from crc32c import crc32c

from tests.wal.bytes_source import BytesSource
from wal import LogIdentity, RecordKind
from wal.format import (
    RECORD_MAGIC,
    SEGMENT_HEADER_BYTES,
    RecordHeader,
    SegmentHeader,
    encode_record_header,
    encode_seal,
    encode_segment_header,
    padded,
)
from wal.scan import Located, find_headers, scan

NUMBER = 3
HEADER = encode_segment_header(SegmentHeader(NUMBER, LogIdentity("i", "c", 1), 10))


def segment(records: Sequence[tuple[int, int, bytes]], *, seal: int | None = None) -> bytes:
    """Records of (kind, sequence, payload), each durable before the next was written."""
    data = HEADER
    for kind, seq, payload in records:
        header = RecordHeader(kind, len(payload), seq, len(data), crc32c(payload))
        data += encode_record_header(NUMBER, len(data), header)
        data += payload.ljust(padded(len(payload)), b"\0")
    return data if seal is None else data + encode_seal(NUMBER, len(data), seal, 99)


def test_a_whole_segment_is_counted() -> None:
    data = segment([(1, 10, b"s"), (2, 10, b"a"), (3, 11, b"o"), (2, 11, b"b")], seal=4)
    verdict = scan(BytesSource(data), NUMBER)
    assert verdict.state(last=False) == "sealed"
    assert (verdict.records, verdict.operations) == (4, 2)
    assert (verdict.first_seq, verdict.last_seq, verdict.end) == (10, 11, len(data))


def test_without_operations_the_last_sequence_is_before_the_first() -> None:
    verdict = scan(BytesSource(segment([(3, 10, b"origins")]) + bytes(100)), NUMBER)
    assert verdict.state(last=True) == "open"
    assert verdict.state(last=False) == "damaged"
    assert (verdict.first_seq, verdict.last_seq) == (10, 9)


@pytest.mark.parametrize(
    ("data", "expected", "found"),
    [
        (segment([(2, 10, b"a")], seal=2), "2 records before the seal", "1"),
        (segment([(2, 10, b"a"), (2, 10, b"b")]), "a sequence above 10", "10"),
        (segment([(2, 11, b"a"), (2, 10, b"b")]), "a sequence above 11", "10"),
        (segment([(2, 9, b"a")]), "a sequence above 9", "9"),
        (segment([(2, 10, b"a")], seal=1) + b"\0x", "nothing behind the seal", "data at 609"),
        (segment([(RecordKind.SEAL, 10, b"four")]), "a seal of 8 bytes", "4 bytes"),
    ],
)
def test_bytes_that_no_crash_can_leave_are_damage_even_in_the_last_segment(
    data: bytes, expected: str, found: str
) -> None:
    verdict = scan(BytesSource(data), NUMBER)
    assert verdict.state(last=True) == "damaged"
    assert verdict.fault is not None
    assert (verdict.fault.expected, verdict.fault.found) == (expected, found)


def test_zeros_after_a_seal_are_valid() -> None:
    data = segment([(2, 10, b"a")], seal=1) + bytes(1000)
    assert scan(BytesSource(data), NUMBER).state(last=False) == "sealed"


def test_a_length_beyond_the_end_is_torn_and_reads_nothing() -> None:
    header = RecordHeader(2, 2**63, 10, SEGMENT_HEADER_BYTES, 0)
    data = HEADER + encode_record_header(NUMBER, len(HEADER), header)
    verdict = scan(BytesSource(data), NUMBER)
    assert verdict.state(last=True) == "torn"
    assert verdict.end == SEGMENT_HEADER_BYTES


def test_headers_are_found_at_any_aligned_offset_across_the_edges_of_reads() -> None:
    data = bytearray(3 << 20)
    places = [512, (1 << 20) - 8, (1 << 20) + 40, (2 << 20) - 32, (3 << 20) - 40]
    header = RecordHeader(2, 0, 10, 512, 0)
    for place in places:
        data[place : place + 40] = encode_record_header(NUMBER, place, header)
    data[2000:2004] = RECORD_MAGIC.to_bytes(4, "little")
    assert list(find_headers(BytesSource(data), NUMBER, 8)) == [
        Located(place, header) for place in places
    ]


def test_searching_does_not_decode_every_offset() -> None:
    class Counting(BytesSource):
        reads = 0

        def read(self, offset: int, length: int) -> memoryview:
            self.reads += 1
            return super().read(offset, length)

    source = Counting(bytes(64 << 20))
    assert list(find_headers(source, NUMBER, 8)) == []
    assert source.reads == 64
