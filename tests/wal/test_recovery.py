"""What a start makes of a log that was cut, flipped, or left by a killed process."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    SMALL,
    Answers,
    operation,
    payloads,
    recovered_records,
    running,
    segment_files,
    write_killed,
)
from wal import Log, LogDamaged, LogSettings, LogTooNew
from wal.format import SEGMENT_HEADER_BYTES, RecordHeader, encode_record_header, segment_name
from wal.scan import BytesSource, scan

WRITTEN = [b"%03d" % i * (i * 7 % 40) for i in range(30)]


@functools.cache
def killed_log() -> bytes:
    """A segment in which each of `WRITTEN` was acknowledged alone; its process was killed."""
    with tempfile.TemporaryDirectory() as folder:
        trio.run(
            lambda: write_killed(
                Path(folder), *WRITTEN, settings=LogSettings(segment_bytes=1 << 14)
            )
        )
        (file,) = segment_files(Path(folder))
        return file.read_bytes()


@functools.cache
def ends() -> list[int]:
    """Where each record of `killed_log` ends."""
    offsets, offset = [], SEGMENT_HEADER_BYTES
    for payload in WRITTEN:
        offset += 40 + -(-len(payload) // 8) * 8
        offsets.append(offset)
    return offsets


@contextmanager
def folder_with(**segments: bytes) -> Iterator[Path]:
    """A folder with segments ``_1=..., _2=...``."""
    folder = Path(tempfile.mkdtemp())
    try:
        for name, data in segments.items():
            (folder / segment_name(int(name[1:]))).write_bytes(data)
        yield folder
    finally:
        shutil.rmtree(folder)


def recover(folder: Path) -> list[bytes]:
    async def read() -> list[bytes]:
        return payloads((await recovered_records(folder))[1])

    return trio.run(read)


def recover_or_refuse(folder: Path) -> list[bytes] | LogDamaged | LogTooNew:
    try:
        return recover(folder)
    except (LogDamaged, LogTooNew) as exc:
        return exc


@given(st.integers(0, ends()[-1]))
def test_a_log_cut_at_any_byte_replays_exactly_what_stands_before_the_cut(cut: int) -> None:
    with folder_with(_1=killed_log()[:cut]) as folder:
        whole = sum(end <= cut for end in ends())
        # The payloads' padding may be missing from a file, never from a record.
        assert recover(folder) in (WRITTEN[:whole], WRITTEN[: whole + 1])
        again = recover(folder)
        assert again == recover(folder)


@given(st.integers(0, ends()[-1] * 8 - 1))
def test_a_flipped_bit_is_damage_unless_it_hits_the_last_group(bit: int) -> None:
    data = bytearray(killed_log())
    data[bit // 8] ^= 1 << bit % 8
    with folder_with(_1=bytes(data)) as folder:
        outcome = recover_or_refuse(folder)
        if isinstance(outcome, LogDamaged | LogTooNew):
            assert outcome.file == folder / segment_name(1)
            assert outcome.offset <= bit // 8
            assert (folder / segment_name(1)).read_bytes() == data
        else:
            # Padding is not covered and not read; the last group is what cannot be told.
            hit = next(i for i, end in enumerate(ends()) if bit // 8 < end)
            in_padding = bit // 8 >= ends()[hit] - (-len(WRITTEN[hit]) % 8)
            assert outcome == (WRITTEN if in_padding else WRITTEN[:-1])
            assert in_padding or hit == len(WRITTEN) - 1


@given(st.integers(0, len(WRITTEN) - 2), st.integers(0, 2**32), st.binary(min_size=8, max_size=64))
def test_overwritten_bytes_before_the_last_group_are_never_skipped(
    record: int, at: int, garbage: bytes
) -> None:
    start = ends()[record - 1] if record else SEGMENT_HEADER_BYTES
    data = bytearray(killed_log())
    at = start + at % 40
    data[at : at + len(garbage)] = garbage
    verdict = scan(BytesSource(data), 1)
    if bytes(data) == killed_log():
        return
    # Garbage that runs over the end leaves no proof behind it: it is as good as a torn tail.
    reaches_the_last = at + len(garbage) > ends()[-2]
    assert verdict.state(last=True) in ("damaged", "newer") or reaches_the_last
    assert verdict.fault is not None
    assert start <= verdict.fault.offset <= at + len(garbage)


def test_a_torn_tail_is_cut_counted_and_kept_aside(tmp_path: Path) -> None:
    data = bytearray(killed_log())
    data[ends()[-1] + 3 : ends()[-1] + 9] = b"torn!!"
    (tmp_path / segment_name(1)).write_bytes(data)

    async def read() -> None:
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        assert (recovered.torn_segments, recovered.torn_bytes) == (1, 9)
        assert recovered.torn_files == (segment_name(1) + ".torn",)
        assert (tmp_path / recovered.torn_files[0]).read_bytes() == b"\0\0\0torn!!"
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == WRITTEN
        assert (recovered.torn_segments, recovered.torn_bytes) == (0, 0)

    trio.run(read)


def test_zeros_before_data_of_the_same_group_are_torn_and_of_a_later_one_damage() -> None:
    async def write(folder: Path, *, together: bool) -> None:
        async with running(folder, clean=False) as state:
            if together:
                await state.answers.write(state.log, b"a" * 600, b"b" * 600)
            else:
                await state.answers.write(state.log, b"a" * 600)
                await state.answers.write(state.log, b"b" * 600)

    def lose_the_first_page(folder: Path) -> None:
        with (folder / segment_name(1)).open("r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES)
            file.write(bytes(512))

    with folder_with() as folder:
        trio.run(lambda: write(folder, together=True))
        lose_the_first_page(folder)
        assert recover(folder) == []
    with folder_with() as folder:
        trio.run(lambda: write(folder, together=False))
        lose_the_first_page(folder)
        with pytest.raises(LogDamaged, match="data at"):
            recover(folder)


def test_a_sealed_segment_has_no_torn_tail(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"only")

    trio.run(write)
    file = tmp_path / segment_name(1)
    data = bytearray(file.read_bytes())
    data[SEGMENT_HEADER_BYTES + 41] ^= 1
    file.write_bytes(data)
    with pytest.raises(LogDamaged, match="payload CRC-32C") as caught:
        recover(tmp_path)
    assert caught.value.offset == SEGMENT_HEADER_BYTES
    assert caught.value.help == f"ingester wal repair {tmp_path}"


@pytest.mark.parametrize("cut", [0, 100, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 30, -1, -48])
def test_a_segment_before_the_last_may_lack_nothing(tmp_path: Path, cut: int) -> None:
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


def test_numbers_of_pieces_that_were_kept_are_not_used_again(tmp_path: Path) -> None:
    (tmp_path / (segment_name(41) + ".damaged")).write_bytes(b"x")

    async def write() -> None:
        async with running(tmp_path) as state:
            assert state.log.open_segment == 42

    trio.run(write)


def test_facts_tell_epochs_sequences_and_counts(tmp_path: Path) -> None:
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


def test_a_start_that_fails_half_way_goes_on_the_next_time(tmp_path: Path) -> None:
    torn = bytearray(killed_log())
    # Longer than a seal: what the seal does not cover must not be found behind it.
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


@settings(max_examples=25)
@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_a_payload_that_holds_a_log_is_not_taken_for_one(junk: bytes, cut: int) -> None:
    inner = killed_log()[: ends()[5]]

    async def write(folder: Path) -> None:
        async with running(folder, LogSettings(segment_bytes=1 << 14), clean=False) as state:
            await state.answers.write(state.log, junk)
            # One group: its second record holds records of a segment with the same number.
            answers = Answers()
            entries = [operation(b"x" * 500), operation(inner)]
            answers.append(state.log, *entries)
            await answers.wait(*entries)

    with folder_with() as folder:
        trio.run(lambda: write(folder))
        at = SEGMENT_HEADER_BYTES + 40 + -(-len(junk) // 8) * 8
        with (folder / segment_name(1)).open("r+b") as file:
            file.seek(at + cut % 500)
            file.write(b"\xff")
        assert recover(folder) == [junk]
