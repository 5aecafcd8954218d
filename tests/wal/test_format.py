"""The bytes of a segment: written values are read back, and other bytes are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wal import Entry, LogIdentity, Preamble, RecordKind
from wal.format import (
    JOIN_BYTES,
    SEGMENT_HEADER_BYTES,
    Mismatch,
    RecordHeader,
    SegmentHeader,
    decode_record_header,
    decode_segment_header,
    encode_record_header,
    encode_segment_header,
    make_body,
    parse_name,
    segment_name,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
kinds = u32.filter(lambda kind: kind & 0xFFFF != RecordKind.OPERATION)
record_headers = st.one_of(
    st.builds(RecordHeader, kinds, u64, u64, u64, u32, st.just(1)),
    st.builds(
        RecordHeader, st.just(RecordKind.OPERATION), u64, u64, u64, u32, st.integers(1, 1 << 16)
    ),
)
segment_headers = st.builds(
    SegmentHeader,
    u64,
    st.builds(
        LogIdentity,
        st.text(max_size=60).filter(lambda text: text.isprintable()),
        st.text(max_size=30).filter(lambda text: text.isprintable()),
        u64,
    ),
    u64,
)


@given(segment_headers)
def test_a_segment_header_is_read_back(header: SegmentHeader) -> None:
    block = encode_segment_header(header)
    assert len(block) == SEGMENT_HEADER_BYTES
    assert decode_segment_header(block) == header


@given(segment_headers, st.integers(0, SEGMENT_HEADER_BYTES * 8 - 1))
def test_a_segment_header_with_any_bit_flipped_is_refused(header: SegmentHeader, bit: int) -> None:
    block = bytearray(encode_segment_header(header))
    block[bit // 8] ^= 1 << bit % 8
    assert isinstance(decode_segment_header(block), Mismatch)


@given(segment_headers, st.integers(0, SEGMENT_HEADER_BYTES - 1))
def test_a_short_segment_header_is_refused(header: SegmentHeader, length: int) -> None:
    assert isinstance(decode_segment_header(encode_segment_header(header)[:length]), Mismatch)


def test_a_later_format_is_distinguished_from_damage() -> None:
    block = bytearray(encode_segment_header(SegmentHeader(1, LogIdentity("a", "b", 1), 1)))
    block[8] = 2
    mismatch = decode_segment_header(block)
    assert isinstance(mismatch, Mismatch)
    assert mismatch.too_new
    assert mismatch.found == "format 2"


def test_an_identity_that_does_not_fit_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        encode_segment_header(SegmentHeader(1, LogIdentity("x" * 256, "", 1), 1))


@given(u64, u64, record_headers)
def test_a_record_header_is_read_back(number: int, offset: int, header: RecordHeader) -> None:
    block = encode_record_header(number, offset, header)
    assert decode_record_header(number, offset, block) == header


@given(u64, u64, record_headers, st.integers(0, 40 * 8 - 1))
def test_a_record_header_with_any_bit_flipped_is_refused(
    number: int, offset: int, header: RecordHeader, bit: int
) -> None:
    block = bytearray(encode_record_header(number, offset, header))
    block[bit // 8] ^= 1 << bit % 8
    assert decode_record_header(number, offset, block) is None


@given(record_headers)
def test_stale_bytes_of_another_segment_or_position_never_pass(header: RecordHeader) -> None:
    block = encode_record_header(7, 512, header)
    assert decode_record_header(7, 512, block) is not None
    assert decode_record_header(8, 512, block) is None
    assert decode_record_header(7, 520, block) is None


@given(st.lists(st.binary(max_size=60)), st.sampled_from([0, JOIN_BYTES]))
def test_a_body_is_its_parts_in_order_padded_to_eight(parts: list[bytes], more: int) -> None:
    parts = [*parts, bytes(more)]
    whole = b"".join(parts)
    body = make_body(parts)
    stored = b"".join(body.pieces)
    assert (body.length, body.crc) == (len(whole), crc32c(whole))
    assert len(stored) % 8 == 0
    assert stored[: len(whole)] == whole
    assert not any(stored[len(whole) :])


def test_parts_may_be_any_contiguous_buffers() -> None:
    parts: list[Any] = [
        np.arange(6, dtype="<i4").reshape(2, 3),
        memoryview(b"abc"),
        np.zeros(0),
        bytearray(2),
    ]
    body = make_body(parts)
    assert b"".join(body.pieces)[: body.length] == np.arange(6, dtype="<i4").tobytes() + b"abc\0\0"


def test_large_parts_are_not_copied() -> None:
    part = bytearray(JOIN_BYTES + 8)
    body = make_body([part])
    part[0] = 7
    assert body.pieces[0][0] == 7


@pytest.mark.parametrize("kind", [RecordKind.SEAL, 0, 7, -1])
def test_a_kind_that_cannot_be_written_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        Entry(kind, [b""])
    with pytest.raises(ValueError, match="cannot be written"):
        Preamble(kind, (b"",))


def test_file_names_are_parsed() -> None:
    assert segment_name(7) == "00000000000000000007.wal"
    assert parse_name("00000000000000000007.wal") == (7, None)
    assert parse_name("00000000000000000007.wal.tmp") == (7, "tmp")
    assert parse_name("00000000000000000007.wal.torn-2") == (7, "torn-2")
    assert parse_name("00000000000000000007.wal.damaged") == (7, "damaged")
    for foreign in ("7.wal", "00000000000000000007.wal.bak", ".DS_Store", "x", "lost+found"):
        assert parse_name(foreign) is None
