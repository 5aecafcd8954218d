"""Recovery of a folder: broken segments, leftovers, foreign files, its own failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from tests.wal.disks import FaultyDisk
from tests.wal.driving import SMALL, payloads, recovered_records, running
from tests.wal.killed_log import WRITTEN, ends, killed_log, recover
from wal import Log, LogDamaged, LogTooNew
from wal.format import SEGMENT_HEADER_BYTES, RecordHeader, encode_record_header, segment_name


@pytest.mark.parametrize("cut", [0, 100, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 30, -1, -48])
def test_only_the_last_segment_may_be_incomplete(tmp_path: Path, cut: int) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"one")
            await state.log.rotate()
            await state.answers.write(state.log, b"two")

    trio.run(write)
    first = tmp_path / segment_name(1)
    os.truncate(first, cut if cut >= 0 else first.stat().st_size + cut)
    with pytest.raises(LogDamaged) as caught:
        recover(tmp_path)
    assert caught.value.file == first


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            for payload in (b"one", b"two", b"three"):
                await state.answers.write(state.log, payload)
                await state.log.rotate()

    trio.run(write)
    (tmp_path / segment_name(2)).unlink()
    with pytest.raises(LogDamaged, match="expected segment 2, found segment 3") as caught:
        recover(tmp_path)
    assert caught.value.file == tmp_path / segment_name(2)


def test_a_segment_under_another_number_is_damage(tmp_path: Path) -> None:
    (tmp_path / segment_name(9)).write_bytes(killed_log())
    (tmp_path / segment_name(10)).write_bytes(killed_log())
    with pytest.raises(LogDamaged, match="expected segment 9, as the file is named"):
        recover(tmp_path)


def test_an_unknown_kind_and_a_later_format_stop_the_start_by_name(tmp_path: Path) -> None:
    data = bytearray(killed_log())
    at = ends()[-1]
    data[at : at + 40] = encode_record_header(1, at, RecordHeader(77, 0, 31, at, 0))
    file = tmp_path / segment_name(1)
    file.write_bytes(data)
    with pytest.raises(LogTooNew, match=r"newer version .*kind 77") as caught:
        recover(tmp_path)
    assert caught.value.offset == at
    data[8] = 9
    file.write_bytes(data)
    with pytest.raises(LogTooNew, match="format 9"):
        recover(tmp_path)
    assert file.read_bytes() == data


@pytest.mark.parametrize("leftover", [b"", b"INGS", bytes(4096), b"\0" * 100 + b"junk" * 200])
def test_a_trailing_file_without_a_header_is_removed_and_a_torn_segment_before_it_is_still_last(
    tmp_path: Path, leftover: bytes
) -> None:
    torn = bytearray(killed_log())
    torn[ends()[-1] : ends()[-1] + 8] = b"unsynced"
    (tmp_path / segment_name(1)).write_bytes(torn)
    (tmp_path / segment_name(2)).write_bytes(leftover)

    async def read() -> None:
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        assert recovered.removed == (segment_name(2),)
        assert [one.number for one in recovered.segments] == [1]
        kept = segment_name(2) + ".torn" in recovered.torn_files
        assert kept == any(leftover)

    trio.run(read)


def test_foreign_files_are_left_alone_and_named(tmp_path: Path) -> None:
    for name in ("notes.txt", "1.wal", "lost+found"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "folder.wal").mkdir()

    async def read() -> None:
        recovered, records = await recovered_records(tmp_path)
        assert records == []
        assert recovered.foreign == ("1.wal", "folder.wal", "lost+found", "notes.txt")
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"x")
        assert (tmp_path / "notes.txt").read_bytes() == b"mine"

    trio.run(read)


def test_numbers_of_kept_pieces_are_not_reused(tmp_path: Path) -> None:
    (tmp_path / (segment_name(41) + ".damaged")).write_bytes(b"x")

    async def write() -> None:
        async with running(tmp_path) as state:
            assert state.log.open_segment == 42

    trio.run(write)


def test_facts_have_epochs_sequences_and_counts(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path, first_seq=100) as state:
            await state.answers.write(state.log, b"a", b"b")
            await state.log.rotate()
            await state.answers.write(state.log, b"c")
        recovered, records = await recovered_records(tmp_path)
        assert [(one.first_seq, one.last_seq, one.operations) for one in recovered.segments] == [
            (100, 101, 2),
            (102, 102, 1),
        ]
        assert (recovered.last_seq, recovered.highest_epoch) == (102, 1)
        assert {one.state for one in recovered.segments} == {"sealed"}
        assert [one.first_seq for one in records] == [100, 101, 102]
        assert [one.epoch for one in records] == [1, 1, 1]

    trio.run(write)


def test_a_start_that_failed_halfway_is_continued_by_the_next(tmp_path: Path) -> None:
    torn = bytearray(killed_log())
    # Longer than a seal, so that these bytes extend beyond the seal.
    torn[ends()[-1] : ends()[-1] + 200] = b"unsynced" * 25
    file = tmp_path / segment_name(1)

    async def fail_at(call: str, skip: int) -> bool:
        file.write_bytes(torn)
        disk = FaultyDisk()
        disk.fail(call, errno.EIO, skip=skip)
        try:
            await Log(tmp_path, SMALL, disk=disk).recover()
        except Exception:
            failed = True
        else:
            failed = False
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        return failed

    async def every_call() -> None:
        failures = 0
        for call in ("pwritev", "fdatasync", "fsync", "truncate", "rename", "fsync_directory"):
            skip = 0
            while await fail_at(call, skip):
                skip += 1
            failures += skip
        assert failures >= 8

    trio.run(every_call)


def test_records_that_were_never_synced_are_synced_before_they_are_replayed(
    tmp_path: Path,
) -> None:
    (tmp_path / segment_name(1)).write_bytes(killed_log())
    disk = FaultyDisk()

    async def read() -> None:
        await Log(tmp_path, SMALL, disk=disk).recover()

    trio.run(read)
    names = disk.names()
    assert names.index("fdatasync") < names.index("pwritev")
