"""Log objects: what is encoded is decoded, and any other bytes are refused."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wal import Entry, LogIdentity, LogTooNew, ObjectDamaged, Preamble, RecordKind
from wal.format import (
    FORMAT_VERSION,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordHeader,
    SegmentHeader,
    encode_record_header,
    encode_seal,
    encode_segment_header,
    make_body,
    record_bytes,
)
from wal.objects import (
    DiskOnly,
    FencedBy,
    LogObject,
    ObjectName,
    ObjectNote,
    decode_object,
    encode_object,
    epoch_folder,
    object_folder,
    object_path,
    parse_object,
)

IDENTITY = LogIdentity("pod-0", "incarnation", 3)
NUMBER = 7
PATH = object_path("pod-0", 3, NUMBER)
SCHEMAS = [Preamble(RecordKind.SCHEMA, (b"schema %d" % number,)) for number in range(3)]

notes = st.builds(
    ObjectNote,
    acknowledged=st.integers(0, 1 << 60),
    disk_only=st.lists(
        st.builds(DiskOnly, st.text(), st.text(), st.integers(0, 99), st.integers(0, 1 << 60))
    ).map(tuple),
    fenced_by=st.none() | st.builds(FencedBy, st.integers(1, 99), st.text()),
)
operations = st.tuples(
    st.binary(max_size=50),
    st.integers(1, 5),
    st.lists(st.sampled_from(SCHEMAS), unique=True).map(tuple),
    st.integers(0, 9),
)


def numbered(found: list[tuple[bytes, int, tuple[Preamble, ...], int]], first: int) -> list[Entry]:
    """Entries with rising sequences, some left out as if they were not shipped."""
    entries, seq = list[Entry](), first
    for payload, count, preambles, skipped in found:
        entry = Entry(RecordKind.OPERATION, [payload], preambles, operations=count)
        seq += skipped if entries else 0
        entry.seq = seq
        seq += count
        entries.append(entry)
    return entries


def example() -> bytes:
    entries = numbered([(b"one", 1, (SCHEMAS[0],), 0), (b"two!", 2, (SCHEMAS[0],), 3)], 40)
    note = ObjectNote(acknowledged=5, disk_only=(DiskOnly("ns", "t", 4, 39),))
    return encode_object(NUMBER, IDENTITY, entries, note, [(RecordKind.ORIGINS, (b"origins",))])


def content(found: LogObject) -> object:
    return found.header, found.note, [(one.header, bytes(one.payload)) for one in found.records]


@given(st.lists(operations, max_size=8), st.integers(1, 1 << 40), notes)
def test_an_object_is_decoded_as_it_was_encoded(
    found: list[tuple[bytes, int, tuple[Preamble, ...], int]], first: int, note: ObjectNote
) -> None:
    entries = numbered(found, first)
    data = encode_object(NUMBER, IDENTITY, entries, note, [(RecordKind.OPENED, (b"a", b"b"))])
    read = decode_object(data, PATH)
    assert (read.path, read.note) == (PATH, note)
    assert (read.header.number, read.header.identity) == (NUMBER, IDENTITY)
    kinds = [one.header.kind for one in read.records]
    assert kinds[0] == RecordKind.OPENED
    assert bytes(read.records[0].payload) == b"ab"
    written = [one for one in read.records if one.header.kind == RecordKind.OPERATION]
    assert [
        (one.header.first_seq, one.header.operations, bytes(one.payload)) for one in written
    ] == [
        (entry.seq, entry.operations, b"".join(entry.body.pieces)[: entry.payload_bytes])
        for entry in entries
    ]
    # Each preamble once, before the first entry that names it.
    seen: list[bytes] = []
    for one in read.records[1:]:
        if one.header.kind == RecordKind.SCHEMA:
            seen.append(bytes(one.payload))
        else:
            entry = entries[written.index(one)]
            assert {b"".join(p.body.pieces)[: p.body.length] for p in entry.preambles} <= set(seen)
    assert len(seen) == len(set(seen))
    assert read.last_seq == (entries[-1].seq + entries[-1].operations - 1 if entries else 0)


def test_an_object_with_a_flipped_byte_is_refused_or_reads_the_same() -> None:
    data, padding = example(), 0
    whole = content(decode_object(data, PATH))
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        try:
            found = decode_object(flipped, PATH)
        except (ObjectDamaged, LogTooNew):
            continue
        padding += 1
        assert content(found) == whole
    assert 0 < padding < 64, "only the padding of records is not covered by a checksum"


def test_a_cut_object_is_refused() -> None:
    data = example()
    for length in range(len(data)):
        with pytest.raises(ObjectDamaged, match=PATH):
            decode_object(data[:length], PATH)


@given(st.binary(max_size=5000))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((ObjectDamaged, LogTooNew)):
        decode_object(data, PATH)


@pytest.mark.parametrize(
    "other",
    [object_path("pod-0", 3, 8), object_path("pod-0", 4, NUMBER), object_path("pod-1", 3, NUMBER)],
)
def test_an_object_under_another_name_is_refused(other: str) -> None:
    with pytest.raises(ObjectDamaged):
        decode_object(example(), other)


def records(*found: tuple[int, bytes], seal: bool = True) -> bytes:
    """An object with these records."""
    end, pieces = SEGMENT_HEADER_BYTES, list[bytes | memoryview]()
    for kind, payload in found:
        body = make_body([payload])
        pieces.append(
            encode_record_header(NUMBER, end, RecordHeader(kind, body.length, 1, end, body.crc))
        )
        pieces += body.pieces
        end += record_bytes(body.length)
    if seal:
        pieces.append(encode_seal(NUMBER, end, len(found), 1))
    return b"".join([encode_segment_header(SegmentHeader(NUMBER, IDENTITY, 1)), *pieces])


def test_records_of_a_newer_version_are_refused_as_such() -> None:
    for kind in (8, 200, RecordKind.OBJECT | 1 << 16):
        with pytest.raises(LogTooNew, match="newer version"):
            decode_object(records((RecordKind.OBJECT, b"\x80"), (kind, b"?")), PATH)
    header = bytearray(records())
    header[8:12] = (FORMAT_VERSION + 1).to_bytes(4, "little")
    header[SEGMENT_HEADER_BYTES - 4 : SEGMENT_HEADER_BYTES] = crc32c(
        bytes(header[: SEGMENT_HEADER_BYTES - 4])
    ).to_bytes(4, "little")
    with pytest.raises(LogTooNew):
        decode_object(header, PATH)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (records((RecordKind.OBJECT, b"\x80"), seal=False), "a seal"),
        (records((RecordKind.OPERATION, b"x")), "an OBJECT record"),
        (records(), "an OBJECT record"),
        (records((RecordKind.OBJECT, b"\xc1")), "a note"),
        (records((RecordKind.OBJECT, b"\x01")), "a note"),
    ],
    ids=["no seal", "no note first", "empty", "no MessagePack", "another type"],
)
def test_an_object_without_its_note_or_seal_is_refused(data: bytes, found: str) -> None:
    with pytest.raises(ObjectDamaged, match=found):
        decode_object(data, PATH)


def test_notes_may_get_further_fields() -> None:
    note = b"\x82\xacacknowledged\x04\xa3new\x01"
    found = decode_object(records((RecordKind.OBJECT, note)), PATH)
    assert (found.note, found.records) == (ObjectNote(acknowledged=4), ())


def test_only_names_of_log_objects_are_parsed() -> None:
    assert object_folder("pod-0") == "_log/pod-0/"
    assert epoch_folder("pod-0", 3) == f"_log/pod-0/{3:020d}/"
    assert f"_log/pod-0/{3:020d}/{7:020d}.wal" == PATH
    assert parse_object(PATH) == ObjectName("pod-0", 3, 7)
    for foreign in (
        PATH + ".tmp",
        PATH[1:],
        f"x/{PATH}",
        PATH.replace("pod-0", ""),
        PATH.replace("pod-0", "a/b"),
        PATH.replace("pod-0", ".hidden"),
        PATH.replace("pod-0", "x" * 129),
        f"_log/pod-0/3/{7:020d}.wal",
        f"_log/pod-0/{3:020d}/7.wal",
        f"_log/pod-0/{3:020d}/{7:020d}.wal\n",
        f"_log/pod-0/{3:020d}/seal",
        f"_log/pod-0/{3:020d}/",
        "_log/",
        "",
    ):
        assert parse_object(foreign) is None
    with pytest.raises(ValueError, match="names no log object"):
        decode_object(example(), "_log/pod-0/seal")


def test_the_note_of_an_object_is_no_entry() -> None:
    for kind in (RecordKind.OBJECT, RecordKind.SEAL):
        with pytest.raises(ValueError, match="cannot be written"):
            Entry(kind, [b""])


def test_payloads_are_views_of_the_objects_bytes() -> None:
    data = example()
    for one in decode_object(data, PATH).records:
        assert one.payload.obj is data
        assert one.payload.readonly
        start = one.offset + RECORD_HEADER_BYTES
        assert data[start : start + one.header.length] == one.payload
