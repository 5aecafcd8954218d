"""The operator's tools: what they report about a damaged log, and what a repair keeps."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import msgspec
import pytest
import trio
from crc32c import crc32c

from tests.wal.disks import FaultyDisk
from tests.wal.driving import SMALL, payloads, recovered_records, running
from wal import Entry, Log, LogDamaged, LogIdentity, LogTooNew, RecordKind
from wal.format import SEGMENT_HEADER_BYTES, RecordHeader, encode_record_header, segment_name
from wal.inspection import Gap, inspect, repair, verify

ONE = [b"a%d" % i for i in range(5)]
TWO = [b"b%d" % i for i in range(5)]
THREE = [b"c%d" % i for i in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sealed segments with five operations each, 1 to 15."""

    async def write() -> None:
        async with running(tmp_path) as state:
            for payload in ONE:
                await state.answers.write(state.log, payload)
            await state.log.rotate()
            for payload in TWO:
                await state.answers.write(state.log, payload)
            await state.log.rotate()
            for payload in THREE:
                await state.answers.write(state.log, payload)

    trio.run(write)
    return tmp_path


def read(folder: Path) -> list[bytes]:
    async def start() -> list[bytes]:
        return payloads((await recovered_records(folder))[1])

    return trio.run(start)


def overwrite(folder: Path, number: int, offset: int, data: bytes) -> bytes:
    file = folder / segment_name(number)
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)
    return file.read_bytes()


def at(record: int) -> int:
    return SEGMENT_HEADER_BYTES + record * 48


def test_a_clean_log_has_facts_no_findings_and_needs_no_repair(folder: Path) -> None:
    facts = inspect(folder)
    assert [(one.number, one.state, one.operations) for one in facts] == [
        (1, "sealed", 5),
        (2, "sealed", 5),
        (3, "sealed", 5),
    ]
    assert [(one.first_seq, one.last_seq, one.epoch) for one in facts] == [
        (1, 5, 1),
        (6, 10, 1),
        (11, 15, 1),
    ]
    assert verify(folder) == []
    report = repair(folder)
    assert report.segments == ()
    assert report.untouched == tuple(segment_name(number) for number in (1, 2, 3))
    assert msgspec.json.decode(msgspec.json.encode(facts))[0]["ingester_id"] == "ingester-1"


def test_inspection_changes_nothing(folder: Path) -> None:
    overwrite(folder, 2, at(2), b"\xff" * 8)
    (folder / "notes").touch()
    (folder / (segment_name(4) + ".tmp")).touch()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert [one.severity for one in verify(folder)] == ["damage", "note", "note"]
    assert inspect(folder)[1].state == "damaged"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_finding_names_file_offset_expected_found_and_command(folder: Path) -> None:
    overwrite(folder, 2, at(2) + 41, b"\xff")
    (finding,) = verify(folder)
    assert (finding.file, finding.offset) == (segment_name(2), at(2))
    assert finding.expected.startswith("payload CRC-32C ")
    assert finding.found != finding.expected
    assert finding.help == f"ingester wal repair {folder}"


def test_a_repair_keeps_every_good_record_and_the_damaged_file(folder: Path) -> None:
    damaged = overwrite(folder, 2, at(1), b"\xff" * 60)
    with pytest.raises(LogDamaged):
        read(folder)
    (done,) = repair(folder).segments
    assert (done.number, done.moved_to) == (2, segment_name(2) + ".damaged")
    assert done.moved_to is not None
    assert (done.records_saved, done.records_lost, done.operations_saved) == (3, 2, 3)
    assert done.gaps == (Gap(7, 8),)
    assert (folder / done.moved_to).read_bytes() == damaged
    assert read(folder) == [*ONE, TWO[0], *TWO[3:], *THREE]
    assert [one.severity for one in verify(folder)] == ["note"]
    assert repair(folder).segments == ()


def test_sequences_and_epochs_survive_a_repair(folder: Path) -> None:
    overwrite(folder, 2, at(0), b"\xff")
    repair(folder)

    async def start() -> None:
        recovered, records = await recovered_records(folder)
        assert [one.first_seq for one in records] == [*range(1, 6), *range(7, 16)]
        assert {one.epoch for one in records} == {1}
        assert recovered.segments[1].ingester_id == "ingester-1"

    trio.run(start)


def test_a_segment_cut_short_is_repaired_to_its_gap(folder: Path) -> None:
    with (folder / segment_name(1)).open("r+b") as file:
        file.truncate(at(3) + 20)
    (done,) = repair(folder).segments
    assert (done.records_saved, done.records_lost, done.gaps) == (3, None, (Gap(4, 5),))
    assert read(folder) == ONE[:3] + TWO + THREE


def test_a_missing_segment_is_replaced_by_an_empty_one(folder: Path) -> None:
    (folder / segment_name(2)).unlink()
    (finding,) = verify(folder)
    assert (finding.file, finding.found) == (segment_name(2), "no such files")
    (done,) = repair(folder).segments
    assert (done.moved_to, done.records_saved, done.gaps) == (None, 0, (Gap(6, 10),))
    assert read(folder) == ONE + THREE


def test_a_lost_header_is_rebuilt_between_segments_of_one_incarnation(folder: Path) -> None:
    overwrite(folder, 2, 0, bytes(SEGMENT_HEADER_BYTES))
    (done,) = repair(folder).segments
    assert (done.records_saved, done.records_lost, done.gaps) == (5, 0, ())
    assert read(folder) == ONE + TWO + THREE


def test_records_of_an_unknown_incarnation_are_set_aside(folder: Path) -> None:
    overwrite(folder, 3, 0, bytes(SEGMENT_HEADER_BYTES))
    (done,) = repair(folder).segments
    assert (done.records_saved, done.records_lost) == (0, 5)
    assert done.gaps == (Gap(11, 15),)
    assert read(folder) == ONE + TWO
    assert done.moved_to is not None
    assert THREE[4] in (folder / done.moved_to).read_bytes()


def test_a_torn_tail_is_left_to_the_next_start(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path, clean=False) as state:
            for payload in ONE:
                await state.answers.write(state.log, payload)

    trio.run(write)
    data = overwrite(tmp_path, 1, at(5), b"torn")
    assert [one.severity for one in verify(tmp_path)] == ["note"]
    assert inspect(tmp_path)[0].state == "torn"
    assert repair(tmp_path).untouched == (segment_name(1),)
    assert (tmp_path / segment_name(1)).read_bytes() == data
    assert read(tmp_path) == ONE


def test_segments_of_a_newer_version_are_not_touched(folder: Path) -> None:
    overwrite(folder, 2, at(1), b"\xff")
    overwrite(folder, 3, 8, b"\x02")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert [one.severity for one in verify(folder)] == ["damage", "newer"]
    with pytest.raises(LogTooNew, match="format 2"):
        repair(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_second_repair_keeps_the_files_of_the_first(folder: Path) -> None:
    first = overwrite(folder, 2, at(1), b"\xff")
    repair(folder)
    second = overwrite(folder, 2, at(2), b"\xff")
    (done,) = repair(folder).segments
    assert done.moved_to == segment_name(2) + ".damaged-2"
    assert (folder / (segment_name(2) + ".damaged")).read_bytes() == first
    assert (folder / done.moved_to).read_bytes() == second


@pytest.mark.parametrize(
    "payload", [struct.pack("<Q", 4), bytes(16), b""], ids=["too few", "too long", "empty"]
)
def test_an_implausible_seal_does_not_count_lost_records(folder: Path, payload: bytes) -> None:
    header = RecordHeader(RecordKind.SEAL, len(payload), 11, at(5), crc32c(payload))
    overwrite(folder, 2, at(5), encode_record_header(2, at(5), header) + payload)
    assert [one.severity for one in verify(folder)] == ["damage"]
    (done,) = repair(folder).segments
    assert (done.records_saved, done.records_lost, done.gaps) == (5, None, ())
    assert read(folder) == ONE + TWO + THREE


@pytest.mark.parametrize("call", ["pwritev", "rename", "fsync", "fsync_directory"])
def test_a_repair_that_failed_halfway_can_be_run_again(folder: Path, call: str) -> None:
    damaged = overwrite(folder, 2, at(1), b"\xff" * 60)
    for skip in range(2):
        disk = FaultyDisk()
        disk.fail(call, errno.EIO, skip=skip)
        if call in ("rename", "fsync") and skip:
            break
        with pytest.raises(Exception, match=r"Input/output error|sync"):
            repair(folder, disk)
    repair(folder)
    assert read(folder) == [*ONE, TWO[0], *TWO[3:], *THREE]
    assert damaged in [file.read_bytes() for file in folder.glob("*.damaged*")]


def test_a_repaired_log_accepts_writes(folder: Path) -> None:
    overwrite(folder, 3, at(4) + 41, b"\xff")
    repair(folder)

    async def write() -> None:
        log = Log(folder, SMALL)
        recovered = await log.recover()
        assert recovered.last_seq == 14
        await log.start(LogIdentity("ingester-1", "incarnation-2", 2), 16)
        assert log.open_segment == 4
        await log.close()
        assert len(inspect(folder)) == 4

    trio.run(write)


def test_a_damaged_run_is_a_gap_of_all_its_operations(tmp_path: Path) -> None:
    """Three runs of 4, 5 and 6 operations, 1 to 15; the checksum of the middle one is wrong."""
    sizes = (4, 5, 6)

    async def write() -> None:
        async with running(tmp_path) as state:
            for size in sizes:
                run = Entry(RecordKind.OPERATION, [b"run%d" % size], operations=size)
                state.answers.append(state.log, run)
                assert await state.answers.wait(run) == [None]
            await state.log.rotate()
            await state.answers.write(state.log, b"after")

    trio.run(write)
    first, second = inspect(tmp_path)
    assert (first.records, first.operations, first.first_seq, first.last_seq) == (3, 15, 1, 15)
    assert second.first_seq == 16
    overwrite(tmp_path, 1, at(1) + 40, b"XXXX")
    (report,) = repair(tmp_path).segments
    assert report.gaps == (Gap(5, 9),)
    assert (report.records_saved, report.operations_saved) == (2, 10)
    assert read(tmp_path) == [b"run4", b"run6", b"after"]
    repaired = inspect(tmp_path)[0]
    assert (repaired.operations, repaired.first_seq, repaired.last_seq) == (10, 1, 15)
    assert [one.severity for one in verify(tmp_path)] == ["note"]
